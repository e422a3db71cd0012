"""Requests of a simulated fleet: prefixes of Zipf popularity, Poisson arrivals, bursts of one prefix, conversations."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Burst:
    """For a while some of all requests have the same prefix."""

    start: float
    end: float
    share: float  # of the requests
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """The load of a simulated fleet."""

    rate: float  # requests per second
    seconds: float
    num_prefixes: int = 200
    zipf: float = 1.1  # exponent: the n-th prefix has weight 1 / n^zipf
    prefix_tokens: int = 2000
    own_tokens: int = 200  # of each request, after its prefix
    output_tokens: int = 100
    bursts: tuple[Burst, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class SimulatedRequest:
    """One request: a path of segments (id, tokens), of which the first ones may be cached."""

    number: int
    arrival: float
    prefix: int
    segments: tuple[tuple[int, int], ...]
    num_output: int
    num_hit: int = 0
    num_sent: int = 0  # how often it was sent: once, and again for each replica that failed
    replica: str = ""
    first_token: float = 0.0
    end: float = 0.0
    excluded: set[str] = field(default_factory=set)

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt."""
        return sum(tokens for _, tokens in self.segments)


def arrivals(traffic: Traffic) -> Iterator[SimulatedRequest]:
    """Yield the requests in order of arrival. Equal for equal traffic."""
    rng = random.Random(traffic.seed)
    weights = list(accumulate(1.0 / (n + 1) ** traffic.zipf for n in range(traffic.num_prefixes)))
    now, number = 0.0, 0
    while True:
        now += rng.expovariate(traffic.rate)
        if now >= traffic.seconds:
            return
        prefix = bisect_left(weights, rng.random() * weights[-1])
        for burst in traffic.bursts:
            if burst.start <= now < burst.end and rng.random() < burst.share:
                prefix = burst.prefix
        own = max(1, round(rng.gauss(traffic.own_tokens, traffic.own_tokens / 4)))
        number += 1
        segments = ((prefix, traffic.prefix_tokens), (-number, own))
        yield SimulatedRequest(number, now, prefix, segments, max(1, round(rng.expovariate(1 / traffic.output_tokens))))
