"""Chooses where a replica gets the KV of a prompt: it computes it, or another replica sends it. Pure.

    computes itself     queue + uncached tokens / prompt rate, plus the delay of every stream there
    another's cache     the blocks' bytes / receive rate, then the rest of the prompt as above
    a prefill replica   its queue + its uncached tokens / its prompt rate, then the blocks' bytes / receive rate

A decode replica avoids prompts: a prefill replica computes them even if that costs more, up to DECODE_PATIENCE times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.gateway.balancers.contract import BalancedRequest, Replica, usable
from quire.gateway.estimate import Estimator, ReplicaTerms, estimate
from quire.types.transfer import Role

RECEIVE_RATE = 5e8  # bytes per second, until the receiver has reported its own
LATENCY = 0.005  # seconds: a connection, and two frames
LEAST_TOKENS = 32  # fewer are computed faster than fetched
DECODE_PATIENCE = 4.0  # a decode replica uses a source that costs up to this many times as much as computing itself


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """The replica that sends the first blocks of a prompt, with the estimates that led to it."""

    replica: str
    computes: bool  # it computes what it has not cached
    num_tokens: int  # prompt tokens whose blocks it sends
    num_cached: int  # of these, tokens that it has cached
    seconds: float  # estimated until the blocks have arrived
    first_token_seconds: float  # estimated, of the request
    alone_seconds: float  # estimated to the first token if the chosen replica computed the prompt itself


class _Option(NamedTuple):
    cost: float  # seconds, including the delay of other requests
    choice: SourceChoice


class PrefixSources:
    """Chooses sources. Caches the terms of replicas that have not changed."""

    def __init__(self) -> None:
        self._estimator = Estimator()

    def choose(
        self, request: BalancedRequest, target: Replica, replicas: Sequence[Replica], now: float
    ) -> SourceChoice | None:
        """Return the source of the target's missing blocks; None: it computes them itself."""
        num_here = min(request.cached.get(target.name, 0), request.num_tokens)
        if not target.load.transfer_port or request.num_tokens - num_here < LEAST_TOKENS:
            return None
        others = [each for each in usable(request, replicas) if each.load.transfer_port and each.name != target.name]
        if not others:
            return None
        own, *terms = self._estimator.terms([target, *others], now)
        alone = _alone(own, request.num_tokens - num_here, now)
        options = [option for each in terms for option in _options(request, own, each, num_here, now, alone)]
        best = min(options, key=lambda each: each.cost, default=None)
        patience = DECODE_PATIENCE if target.load.role == Role.DECODE else 1.0
        return None if best is None or best.cost >= patience * alone[0] else best.choice


def _alone(own: ReplicaTerms, num_uncached: int, now: float) -> tuple[float, float]:
    """Return the cost of computing tokens at the target, and the estimated seconds to its first token."""
    found, load = estimate(own, num_uncached, 0, now), own.replica.load
    num_delayed = min(own.num_others, load.num_running + load.num_waiting)  # without requests that wait for blocks
    return found.first_token + num_uncached / own.rate * num_delayed, found.first_token


def _options(
    request: BalancedRequest,
    own: ReplicaTerms,
    other: ReplicaTerms,
    num_here: int,
    now: float,
    alone: tuple[float, float],
) -> Iterator[_Option]:
    """Yield the ways in which another replica can send blocks to the target."""
    source, num_tokens, size = other.replica, request.num_tokens, max(own.replica.load.block_tokens, 1)
    most = (num_tokens - 1) // size * size  # whole blocks; the last token is always computed
    num_cached = min(request.cached.get(source.name, 0) // size * size, most)
    if num_cached - num_here >= LEAST_TOKENS:
        arrival = _transfer(own.replica, source, num_cached - num_here)
        cost, first_token = _alone(own, num_tokens - num_cached, now)
        choice = SourceChoice(source.name, False, num_cached, num_cached, arrival, arrival + first_token, alone[1])
        yield _Option(arrival + cost, choice)
    if source.load.role == Role.PREFILL and most - num_here >= LEAST_TOKENS:
        computed = estimate(other, max(num_tokens - num_cached, 1), 0, now).first_token
        arrival = computed + _transfer(own.replica, source, most - num_here)
        cost, first_token = _alone(own, num_tokens - most, now)
        choice = SourceChoice(source.name, True, most, num_cached, arrival, arrival + first_token, alone[1])
        yield _Option(arrival + cost, choice)


def _transfer(target: Replica, source: Replica, num_tokens: int) -> float:
    """Return the estimated seconds to send the blocks of `num_tokens`."""
    return LATENCY + num_tokens * source.load.token_bytes / (target.load.receive_rate or RECEIVE_RATE)
