"""When requests arrive where nobody waits for answers: times after the beginning, without end, from a seed.

poisson       independent of each other
constant      one after the other at equal distances
gamma:0.5     burstier than poisson; gamma:1 is poisson, above 1 it is calmer (the burstiness of vLLM)
bursts:8      eight at once, the bursts themselves like poisson
ramp:1        like poisson, at a rate that grows from 1 to the one that is asked for
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from quire.types.errors import InvalidRequest

KINDS = "poisson, constant, gamma:SHAPE, bursts:SIZE or ramp:START"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests of one average rate are spread. `number` is what the kind needs: a shape, a size, a rate."""

    kind: str = "poisson"
    number: float = 0.0

    def times(self, rate: float, seconds: float, chance: random.Random) -> Iterator[float]:
        """Ascending. `seconds` is how long a ramp takes; after it, the rate stays."""
        match self.kind:
            case "poisson":
                return itertools.accumulate(_gaps(rate, chance))
            case "constant":
                return (index / rate for index in itertools.count())
            case "gamma":
                return itertools.accumulate(_gamma_gaps(rate, self.number, chance))
            case "bursts":
                return _bursts(rate, int(self.number), chance)
            case _:
                return _ramp(self.number, rate, seconds, chance)

    def seconds_for(self, rate: float, num_requests: int) -> float:
        """How long so many take to arrive, about."""
        return num_requests / ((self.number + rate) / 2 if self.kind == "ramp" else rate)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number:g}" if self.number else self.kind


def parse_arrivals(text: str) -> Arrivals:
    """As it is written above."""
    kind, _, number = text.partition(":")
    try:
        if kind in ("poisson", "constant") and not number:
            return Arrivals(kind)
        if kind in ("gamma", "bursts", "ramp") and float(number) > 0:
            return Arrivals(kind, float(int(number)) if kind == "bursts" else float(number))
    except ValueError:
        pass
    raise InvalidRequest(f"{text!r} is no way to arrive: write {KINDS}.", field="arrivals")


def _gaps(rate: float, chance: random.Random) -> Iterator[float]:
    while True:
        yield chance.expovariate(rate)


def _gamma_gaps(rate: float, shape: float, chance: random.Random) -> Iterator[float]:
    while True:
        yield chance.gammavariate(shape, 1 / (rate * shape))


def _bursts(rate: float, size: int, chance: random.Random) -> Iterator[float]:
    for time in itertools.accumulate(_gaps(rate / size, chance)):
        yield from itertools.repeat(time, size)


def _ramp(start: float, rate: float, seconds: float, chance: random.Random) -> Iterator[float]:
    """Arrivals of rate one, at the time when so many of the growing rate are expected."""
    growth, at_end = (rate - start) / seconds, (start + rate) / 2 * seconds
    for expected in itertools.accumulate(_gaps(1.0, chance)):
        if expected > at_end:
            yield seconds + (expected - at_end) / rate
        elif growth:
            yield (math.sqrt(start * start + 2 * growth * expected) - start) / growth
        else:
            yield expected / rate
