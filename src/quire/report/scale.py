"""Scales of axes: from values to pixels, and the ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # times a power of ten
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
FEW_DECADES = 2  # a logarithmic axis up to this has ticks between the powers of ten
MIN_LOG_RATIO = 2  # of largest to smallest value: with less, the axis is linear even if logarithmic was requested


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps values between `low` and `high` to pixels between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def axis_scale(values: Sequence[float], start: float, end: float, is_log: bool = False) -> AxisScale:
    """Return a scale that contains all values and ends at ticks. A linear one includes zero."""
    positive = [value for value in values if value > 0]
    if is_log and positive and max(positive) > MIN_LOG_RATIO * min(positive):
        ticks = _log_ticks(min(positive), max(positive))
        return AxisScale(ticks[0], ticks[-1], start, end, True, ticks)
    ticks = _ticks(min(0.0, *values, 0.0), max(*values, 0.0, 0.0) or 1.0)
    return AxisScale(ticks[0], ticks[-1], start, end, False, ticks)


def _ticks(low: float, high: float, num_ticks: int = 5) -> tuple[float, ...]:
    rough = (high - low) / num_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in TICK_STEPS if step * power >= rough * (1 - 1e-9)) * power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(step * index for index in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    between = (1, 2, 5) if last - first <= FEW_DECADES else (1,)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in between]
    below = max((index for index, tick in enumerate(ticks) if tick <= low * (1 + 1e-9)), default=0)
    above = next((index for index, tick in enumerate(ticks) if tick >= high * (1 - 1e-9)), len(ticks) - 1)
    return tuple(ticks[below : above + 1])


def format_tick(value: float) -> str:
    """Format a number for a tick: 1.5k, 0.25, 200."""
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"
