"""By the tier of the API key: a named set of keys in the routes file."""

from __future__ import annotations

from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "pro"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """One declared tier, or several."""
    names: frozenset[str] = frozenset()
    for each in node.items():
        if each.text() not in declared.tiers:
            raise each.error(f"there is no tier {each.text()!r}: declared are {', '.join(declared.tiers) or 'none'}.")
        names |= declared.tiers[each.text()]
    return lambda facts: facts.key in names
