"""By what is loaded: holds if one of these models could answer at once."""

from __future__ import annotations

from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "[large, medium]"


def read(node: Node, given: Given) -> Condition:
    """A model, or several."""
    names = frozenset(node.texts())
    return lambda facts: not names.isdisjoint(facts.loaded)
