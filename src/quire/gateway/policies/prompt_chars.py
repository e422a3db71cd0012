"""By the length of the whole prompt, in characters."""

from __future__ import annotations

from quire.gateway.bounds import read_bounds
from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "{at_most: 500}"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """A range."""
    bounds = read_bounds(node)
    return lambda facts: facts.num_chars in bounds
