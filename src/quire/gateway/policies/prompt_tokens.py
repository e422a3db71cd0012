"""By the length of the whole prompt, in tokens: about, because each model counts otherwise and none is chosen yet.

Four bytes of text are taken for a token; tokens that are given as such are counted.
"""

from __future__ import annotations

from quire.gateway.bounds import read_bounds
from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "{at_least: 2000}"


def read(node: Node, given: Given) -> Condition:
    """A range."""
    bounds = read_bounds(node)
    return lambda facts: facts.num_tokens in bounds
