"""By the name of the API key."""

from __future__ import annotations

from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "[alice, bob]"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """One name, or several."""
    names = frozenset(node.texts())
    return lambda facts: facts.key in names
