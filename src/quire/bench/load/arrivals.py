"""Arrival times of an open loop: seconds after the start, endless, drawn from a seed.

poisson       independent arrivals
constant      equal gaps
gamma:0.5     burstier than poisson; gamma:1 is poisson, above 1 is smoother (the burstiness of vLLM)
bursts:8      eight at once; the bursts themselves are poisson
ramp:1        poisson, at a rate that grows from 1 to the requested rate
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
class ArrivalProcess:
    """How requests of one average rate arrive. `number` is the kind's parameter: a shape, a size or a rate."""

    kind: str = "poisson"
    number: float = 0.0

    def times(self, rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
        """Yield ascending times. `seconds` is the length of a ramp, after which the rate is constant."""
        match self.kind:
            case "poisson":
                return itertools.accumulate(_gaps(rate, rng))
            case "constant":
                return (index / rate for index in itertools.count())
            case "gamma":
                return itertools.accumulate(_gamma_gaps(rate, self.number, rng))
            case "bursts":
                return _bursts(rate, int(self.number), rng)
            case _:
                return _ramp(self.number, rate, seconds, rng)

    def seconds_for(self, rate: float, num_requests: int) -> float:
        """Return the expected time until this many requests have arrived."""
        return num_requests / ((self.number + rate) / 2 if self.kind == "ramp" else rate)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number:g}" if self.number else self.kind


def parse_arrivals(text: str) -> ArrivalProcess:
    """Read one of the forms in this module's docstring."""
    kind, _, number = text.partition(":")
    try:
        if kind in ("poisson", "constant") and not number:
            return ArrivalProcess(kind)
        if kind in ("gamma", "bursts", "ramp") and float(number) > 0:
            return ArrivalProcess(kind, float(int(number)) if kind == "bursts" else float(number))
    except ValueError:
        pass
    raise InvalidRequest(f"{text!r} is not an arrival process: use {KINDS}.", field="arrivals")


def _gaps(rate: float, rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.expovariate(rate)


def _gamma_gaps(rate: float, shape: float, rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gammavariate(shape, 1 / (rate * shape))


def _bursts(rate: float, size: int, rng: random.Random) -> Iterator[float]:
    for time in itertools.accumulate(_gaps(rate / size, rng)):
        yield from itertools.repeat(time, size)


def _ramp(start: float, rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Map arrivals of rate one to the times at which the growing rate expects as many."""
    growth, at_end = (rate - start) / seconds, (start + rate) / 2 * seconds
    for expected in itertools.accumulate(_gaps(1.0, rng)):
        if expected > at_end:
            yield seconds + (expected - at_end) / rate
        elif growth:
            yield (math.sqrt(start * start + 2 * growth * expected) - start) / growth
        else:
            yield expected / rate
