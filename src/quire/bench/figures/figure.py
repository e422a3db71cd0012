"""One measured figure, the same figure of other engines, and its goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

BEST = "the best other"  # a goal's peer: the one with the best figure


class Goal(NamedTuple):
    """A bound on a figure, or on its ratio to the figure of a peer."""

    kind: Literal["at least", "at most"]
    bound: float
    peer: str | None = None  # its name, or BEST

    def __str__(self) -> str:
        times = f" × {self.peer}" if self.peer is not None else ""
        return f"{'≥' if self.kind == 'at least' else '≤'} {self.bound:.3g}{times}"


def at_least(bound: float) -> Goal:
    """Bound the figure from below."""
    return Goal("at least", bound)


def at_most(bound: float) -> Goal:
    """Bound the figure from above."""
    return Goal("at most", bound)


def at_least_times(bound: float, peer: str) -> Goal:
    """Bound the ratio to a peer's figure from below."""
    return Goal("at least", bound, peer)


def at_most_times(bound: float, peer: str) -> Goal:
    """Bound the ratio to a peer's figure from above."""
    return Goal("at most", bound, peer)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement. `peers` are the same figure of other engines, by name."""

    name: str
    value: float
    unit: str
    goal: Goal | None = None
    note: str = ""
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Our figure divided by that of the goal's peer; without such a goal, by that of the only peer."""
        other = self._compared()
        return self.value / other if other else None

    def _compared(self) -> float | None:
        name = self.goal.peer if self.goal is not None else None
        if name is None:
            return next(iter(self.peers.values())) if len(self.peers) == 1 else None
        if name != BEST or self.goal is None:
            return self.peers.get(name)
        best = max if self.goal.kind == "at least" else min
        return best(self.peers.values(), default=None)

    @property
    def verdict(self) -> Literal["", "reached", "MISSED", "not compared"]:
        """Whether the goal is reached; empty without a goal."""
        if self.goal is None:
            return ""
        value = self.ratio if self.goal.peer is not None else self.value
        if value is None:
            return "not compared"
        is_reached = value >= self.goal.bound if self.goal.kind == "at least" else value <= self.goal.bound
        return "reached" if is_reached else "MISSED"
