"""By what is loaded: true if one of these models can answer now."""

from __future__ import annotations

from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "[large, medium]"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """One model, or several."""
    names = frozenset(node.texts())
    return lambda facts: not names.isdisjoint(facts.loaded)
