"""How long prompts and answers are: drawn from a distribution that is written in one word.

256                     always
100-300                 uniform, both ends included
lognormal:256:0.8       median and spread (sigma of the logarithm); a third number is the most that may come
empirical:10/20/20/500  one of these; @lengths.txt takes them from a file, one in a line
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


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers, at least one each."""

    spelled: str
    values: tuple[int, ...] = ()  # one of these; or else
    low: int = 1
    high: int = 1  # uniform, both included; or else
    median: float = 0.0
    sigma: float = 0.0

    def draw(self, chance: random.Random) -> int:
        """The next one."""
        if self.values:
            return chance.choice(self.values)
        if self.median:
            drawn = round(chance.lognormvariate(math.log(self.median), self.sigma))
            return min(max(1, drawn), self.high)
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return self.spelled


def parse_lengths(text: str) -> Lengths:
    """As it is written above."""
    kind, _, rest = text.partition(":")
    try:
        if text.isdecimal():
            made = Lengths(text, low=int(text), high=int(text))
        elif found := UNIFORM.fullmatch(text):
            made = Lengths(text, low=int(found[1]), high=int(found[2]))
        elif kind == "lognormal":
            median, sigma, *most = rest.split(":")
            made = Lengths(text, median=float(median), sigma=float(sigma), high=int(most[0]) if most else 1 << 20)
        elif kind == "empirical":
            made = Lengths(text, values=tuple(int(each) for each in rest.split("/")))
        elif text.startswith("@"):
            made = Lengths(text, values=tuple(int(each) for each in Path(text[1:]).read_text().split()))
        else:
            raise ValueError(text)
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"{text!r} is no length: write {KINDS}.", field="length") from error
    if made.low < 1 or made.high < made.low or min(made.values, default=1) < 1 or made.median < 0 or made.sigma < 0:
        raise InvalidRequest(f"{text!r} has a length that nothing can have: they begin at 1.", field="length")
    return made
