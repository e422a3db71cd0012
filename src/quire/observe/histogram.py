"""How values are spread: counts by size, cheap enough to be kept for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A histogram as a value. `counts` has one place more than there are bounds: for what is larger than all."""

    counts: tuple[int, ...] = ()
    total: float = 0.0


NO_SPREAD = Spread()


class Histogram:
    """Counts of values, each in the first place whose bound is not smaller."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def spread(self) -> Spread:
        """As it is now."""
        return Spread(tuple(self._counts), self._total)
