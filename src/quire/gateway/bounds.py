"""A range of numbers, as conditions on lengths declare it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.gateway.declared import Node

WORDS = ("at_least", "at_most")


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `low` to `high`, both included."""

    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


def read_bounds(node: Node) -> Bounds:
    """`{at_least: 100, at_most: 2000}`, or one of them."""
    parts = node.entries(WORDS)
    if not parts:
        raise node.wrong("give at_least, at_most, or both.")
    low = parts["at_least"].number(0) if "at_least" in parts else 0.0
    high = parts["at_most"].number(0) if "at_most" in parts else float("inf")
    if low > high:
        raise node.wrong(f"no number is at least {low:g} and at most {high:g}.")
    return Bounds(low, high)
