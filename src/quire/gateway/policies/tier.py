"""By the tier of the API key: a set of keys that the file of routes gives a name to."""

from __future__ import annotations

from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "pro"


def read(node: Node, given: Given) -> Condition:
    """A tier, or several, each of them declared."""
    names: frozenset[str] = frozenset()
    for each in node.items():
        if each.text() not in given.tiers:
            raise each.wrong(f"there is no tier {each.text()!r}: declared are {', '.join(given.tiers) or 'none'}.")
        names |= given.tiers[each.text()]
    return lambda facts: facts.key in names
