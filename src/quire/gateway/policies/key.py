"""By the name of the API key."""

from __future__ import annotations

from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "[alice, bob]"


def read(node: Node, given: Given) -> Condition:
    """A name, or several."""
    names = frozenset(node.texts())
    return lambda facts: facts.key in names
