"""The best and the second best of several values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TopTwo(NamedTuple):
    """The names of the two best values, and the larger value divided by the smaller."""

    best: str
    second: str | None = None  # None: there is one value
    ratio: float = 1.0


def top_two(values: Mapping[str, float], *, is_more_better: bool) -> TopTwo:
    """Rank values by name. The ratio is 1 if the smaller of the two is 0."""
    best, *others = sorted(values, key=lambda name: values[name], reverse=is_more_better)
    if not others:
        return TopTwo(best)
    high, low = max(values[best], values[others[0]]), min(values[best], values[others[0]])
    return TopTwo(best, others[0], high / low if low else 1.0)
