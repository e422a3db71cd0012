"""By the request's `metadata`: every entry listed must have one of its values."""

from __future__ import annotations

from quire.gateway.policy import Condition, Declarations
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = "{team: [legal, sales], stage: draft}"


def read(node: YamlNode, declared: Declarations) -> Condition:
    """Entries, each with one value or several."""
    allowed = {name: frozenset(value.texts()) for name, value in node.entries().items()}
    if not allowed:
        raise node.error("expected at least one entry.")
    return lambda facts: all(facts.metadata.get(name) in values for name, values in allowed.items())
