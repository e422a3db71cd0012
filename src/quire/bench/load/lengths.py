"""Lengths of prompts and answers, drawn from a distribution.

256                     always this length
100-300                 uniform, both ends included
lognormal:256:0.8       median and sigma of the logarithm; an optional third number is the maximum
empirical:10/20/20/500  one of these; @lengths.txt reads them from a file, one a line
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from pathlib import Path

from quire.types.errors import InvalidRequest

UNIFORM = re.compile(r"(\d+)-(\d+)")
KINDS = "256, 100-300, lognormal:256:0.8, empirical:10/20/500 or @FILE"
DEFAULT_MAXIMUM = 1 << 20


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Integers of at least 1: drawn from `values` if set, log-normal if `median` is set, else uniform."""

    spec: str  # as the user wrote it
    values: tuple[int, ...] = ()
    low: int = 1
    high: int = 1  # included; also the maximum of a log-normal
    median: float = 0.0
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """Return a random length."""
        if self.values:
            return rng.choice(self.values)
        if self.median:
            length = round(rng.lognormvariate(math.log(self.median), self.sigma))
            return min(max(1, length), self.high)
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return self.spec


def parse_lengths(text: str) -> LengthDistribution:
    """Read one of the forms in this module's docstring."""
    try:
        lengths = _parse(text)
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"{text!r} is not a length: use {KINDS}.", field="length") from error
    is_ordered = 1 <= lengths.low <= lengths.high and min(lengths.values, default=1) >= 1
    if not is_ordered or lengths.median < 0 or lengths.sigma < 0:
        raise InvalidRequest(f"{text!r} allows a length below 1, or its bounds are swapped.", field="length")
    return lengths


def _parse(text: str) -> LengthDistribution:
    kind, _, rest = text.partition(":")
    if text.isdecimal():
        return LengthDistribution(text, low=int(text), high=int(text))
    if bounds := UNIFORM.fullmatch(text):
        return LengthDistribution(text, low=int(bounds[1]), high=int(bounds[2]))
    if kind == "lognormal":
        median, sigma, *maximum = rest.split(":")
        high = int(maximum[0]) if maximum else DEFAULT_MAXIMUM
        return LengthDistribution(text, median=float(median), sigma=float(sigma), high=high)
    if kind == "empirical":
        return LengthDistribution(text, values=tuple(int(each) for each in rest.split("/")))
    if text.startswith("@"):
        return LengthDistribution(text, values=tuple(int(each) for each in Path(text[1:]).read_text().split()))
    raise ValueError(text)
