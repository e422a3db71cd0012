"""By the length of the whole prompt, in characters."""

from __future__ import annotations

from quire.gateway.bounds import read_bounds
from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "{at_most: 500}"


def read(node: Node, given: Given) -> Condition:
    """A range."""
    bounds = read_bounds(node)
    return lambda facts: facts.num_chars in bounds
