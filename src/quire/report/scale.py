"""Where values lie on an axis, and which of them are written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NICE = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps between ticks, times a power of ten
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
NUM_TICKS = 5  # about so many
FEW_DECADES = 2  # an axis that spans fewer has ticks between the powers of ten
NARROW = 2  # times: an axis that spans less is drawn straight even if it was to be logarithmic


@dataclass(frozen=True, slots=True)
class Scale:
    """From values between `low` and `high` to pixels between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Scale:
    """An axis that holds all values and ends at ticks. A straight one begins at zero."""
    positive = [value for value in values if value > 0]
    if is_log and positive and max(positive) > NARROW * min(positive):
        ticks = _log_ticks(min(positive), max(positive))
        return Scale(ticks[0], ticks[-1], start, end, True, ticks)
    ticks = _ticks(min(0.0, *values, 0.0), max(*values, 0.0, 0.0) or 1.0)
    return Scale(ticks[0], ticks[-1], start, end, False, ticks)


def _ticks(low: float, high: float) -> tuple[float, ...]:
    rough = (high - low) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(nice for nice in NICE if nice * power >= rough * (1 - 1e-9)) * power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(step * index for index in range(first, last + 1))


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    between = (1, 2, 5) if last - first <= FEW_DECADES else (1,)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in between]
    below = max((index for index, tick in enumerate(ticks) if tick <= low * (1 + 1e-9)), default=0)
    above = next((index for index, tick in enumerate(ticks) if tick >= high * (1 - 1e-9)), len(ticks) - 1)
    return tuple(ticks[below : above + 1])


def short(value: float) -> str:
    """A number as a tick has it: 1.5k, 0.25, 200."""
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"
