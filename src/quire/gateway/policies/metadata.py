"""By what the client says in the request's `metadata`: every entry must have one of its values."""

from __future__ import annotations

from quire.gateway.declared import Node
from quire.gateway.policy import Condition, Given

EXAMPLE = "{team: [legal, sales], stage: draft}"


def read(node: Node, given: Given) -> Condition:
    """Entries, each with a value or several."""
    wanted = {name: frozenset(value.texts()) for name, value in node.entries().items()}
    if not wanted:
        raise node.wrong("here must be at least one entry.")
    return lambda facts: all(facts.metadata.get(name) in values for name, values in wanted.items())
