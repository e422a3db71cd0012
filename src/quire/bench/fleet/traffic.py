"""Requests of a simulated fleet: prefixes of Zipf popularity, bursts of one prefix; Poisson arrivals, or clients."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

COMMON = -(10**9)  # the segment of the tokens that all requests begin with


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

    rate: float = 0.0  # requests per second, if there are no clients
    seconds: float = float("inf")
    num_prefixes: int = 200
    zipf: float = 1.1  # exponent: the n-th prefix has weight 1 / n^zipf
    prefix_tokens: int = 2000
    prefix_spread: float = 0.0  # prefixes have (1 - spread) to (1 + spread) times prefix_tokens
    common_tokens: int = 0  # of all requests, before the prefix
    own_tokens: int = 200  # of each request, after its prefix
    output_tokens: int = 100
    bursts: tuple[Burst, ...] = ()
    num_clients: int = 0  # each sends its next request when its last one has ended
    num_requests: int = 0  # of all clients together
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
    """Yield the requests in order of arrival. Equal traffic gives equal requests. Those of clients arrive at 0."""
    rng = random.Random(traffic.seed)
    weights = list(accumulate(1.0 / (n + 1) ** traffic.zipf for n in range(traffic.num_prefixes)))
    low, high = 1.0 - traffic.prefix_spread, 1.0 + traffic.prefix_spread
    sizes = [round(traffic.prefix_tokens * (rng.uniform(low, high) if low < high else 1.0)) for _ in weights]
    common = ((COMMON, traffic.common_tokens),) if traffic.common_tokens else ()
    now, number = 0.0, 0
    while not traffic.num_clients or number < traffic.num_requests:
        now += 0.0 if traffic.num_clients else rng.expovariate(traffic.rate)
        if now >= traffic.seconds:
            return
        prefix = bisect_left(weights, rng.random() * weights[-1])
        for burst in traffic.bursts:
            if burst.start <= now < burst.end and rng.random() < burst.share:
                prefix = burst.prefix
        own = max(1, round(rng.gauss(traffic.own_tokens, traffic.own_tokens / 4)))
        number += 1
        segments = (*common, (prefix, sizes[prefix]), (-number, own))
        yield SimulatedRequest(number, now, prefix, segments, max(1, round(rng.expovariate(1 / traffic.output_tokens))))
