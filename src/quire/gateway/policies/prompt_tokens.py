"""By the length of the whole prompt in tokens: an estimate, because no model is chosen yet.

Four bytes of text count as one token; tokens given as ids are counted.
"""

from __future__ import annotations

from quire.gateway.bounds import read_bounds
from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "{at_least: 2000}"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """A range."""
    bounds = read_bounds(node)
    return lambda facts: facts.num_tokens in bounds
