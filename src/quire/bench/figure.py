"""One measured number beside a peer's, and what it should be."""

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
    """The figure itself."""
    return Goal("at least", bound)


def at_most(bound: float) -> Goal:
    """The figure itself."""
    return Goal("at most", bound)


def at_least_times(bound: float) -> Goal:
    """So many times the peer's figure."""
    return Goal("at least", bound, of_peer=True)


def at_most_times(bound: float) -> Goal:
    """So many times the peer's figure."""
    return Goal("at most", bound, of_peer=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement. `peer` is the same thing measured of somebody else, None if it was not."""

    name: str
    value: float
    unit: str
    goal: Goal | None = None
    note: str = ""
    peer: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's."""
        return self.value / self.peer if self.peer else None

    @property
    def verdict(self) -> Literal["", "reached", "MISSED", "not compared"]:
        """Is the goal reached? Nothing if there is none."""
        if self.goal is None:
            return ""
        judged = self.ratio if self.goal.of_peer else self.value
        if judged is None:
            return "not compared"
        is_reached = judged >= self.goal.bound if self.goal.kind == "at least" else judged <= self.goal.bound
        return "reached" if is_reached else "MISSED"
