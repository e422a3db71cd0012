"""One measured figure, the peer's figure, and its goal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Goal(NamedTuple):
    """A bound on a figure, or on its ratio to the peer's."""

    kind: Literal["at least", "at most"]
    bound: float
    of_peer: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.kind == 'at least' else '≤'} {self.bound:.3g}{' ×' if self.of_peer else ''}"


def at_least(bound: float) -> Goal:
    """Bound the figure from below."""
    return Goal("at least", bound)


def at_most(bound: float) -> Goal:
    """Bound the figure from above."""
    return Goal("at most", bound)


def at_least_times(bound: float) -> Goal:
    """Bound the ratio to the peer's figure from below."""
    return Goal("at least", bound, of_peer=True)


def at_most_times(bound: float) -> Goal:
    """Bound the ratio to the peer's figure from above."""
    return Goal("at most", bound, of_peer=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement. `peer` is the same figure of another engine; None: not measured."""

    name: str
    value: float
    unit: str
    goal: Goal | None = None
    note: str = ""
    peer: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the peer's."""
        return self.value / self.peer if self.peer else None

    @property
    def verdict(self) -> Literal["", "reached", "MISSED", "not compared"]:
        """Whether the goal is reached; empty without a goal."""
        if self.goal is None:
            return ""
        value = self.ratio if self.goal.of_peer else self.value
        if value is None:
            return "not compared"
        is_reached = value >= self.goal.bound if self.goal.kind == "at least" else value <= self.goal.bound
        return "reached" if is_reached else "MISSED"
