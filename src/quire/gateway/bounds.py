"""A range of numbers, for conditions on lengths."""

from __future__ import annotations

from dataclasses import dataclass

from quire.gateway.yaml_nodes import YamlNode

WORDS = ("at_least", "at_most")


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def read_bounds(node: YamlNode) -> Bounds:
    """`{at_least: 100, at_most: 2000}`, or one of them."""
    parts = node.entries(WORDS)
    if not parts:
        raise node.error("give at_least, at_most, or both.")
    low = parts["at_least"].number(0) if "at_least" in parts else 0.0
    high = parts["at_most"].number(0) if "at_most" in parts else float("inf")
    if low > high:
        raise node.error(f"no number is at least {low:g} and at most {high:g}.")
    return Bounds(low, high)
