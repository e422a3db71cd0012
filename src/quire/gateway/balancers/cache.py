"""Chooses the replica with the least cost: the request's own time, plus the time that its prompt takes from others.

    own time = wait in the queue + computing the uncached tokens + output
    cost     = own time + seconds of computing × requests that are delayed meanwhile

A replica with the prefix has the least cost unless its queue is long. Each request is decided alone, so a busy replica
loses only the requests that are cheaper elsewhere. Computing a prefix on a second replica rarely pays for one request,
but does if many follow. So the time that requests lose by waiting for a replica with their prefixes is added up. When
it covers the cost of a second copy, the next request is sent to the replica that would answer it soonest, which
computes the copy. A popular prefix soon gets copies, a rare one none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, ReplicateHint, usable
from quire.gateway.estimate import Estimator, ReplicaTerms, estimate

SIMILAR = 0.02  # costs that differ by less than this share count as equal
SIMILAR_SECONDS = 0.002
MEMORY_SECONDS = 5.0  # half-life of lost time: recent losses predict what a copy will save


class LostTime:
    """Seconds that requests recently lost by waiting for a replica although another would have answered sooner."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = 0.0

    def at(self, now: float) -> float:
        """Return the seconds that still count."""
        return self._seconds * 0.5 ** ((now - self._at) / MEMORY_SECONDS) if self._seconds else 0.0

    def add(self, seconds: float, now: float) -> None:
        """Add a request's loss."""
        self._seconds, self._at = self.at(now) + seconds, now

    def clear(self) -> None:
        """Count from 0 again: a copy was made."""
        self._seconds = 0.0


class CacheBalancer:
    """Among similar costs, prefers the most cached tokens, then the fewest prompt tokens sent: caches fill evenly."""

    def __init__(self) -> None:
        self._estimator = Estimator()
        self._given: Counter[str] = Counter()  # uncached prompt tokens
        self._lost: dict[str, LostTime] = {}

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the least cost, or a sooner one if a copy there pays for later requests."""
        terms = self._estimator.terms(usable(request, replicas), now)
        if not terms:
            return None
        ends, costs = _costs(request, terms, now)
        cached, given, least = request.cached, self._given, min(costs)
        limit = least + max(SIMILAR_SECONDS, SIMILAR * least)
        similar = [number for number, cost in enumerate(costs) if cost <= limit]
        names = [terms[number].replica.name for number in similar]
        hits = [-cached.get(name, 0) for name in names]
        _, _, best = min(zip(hits, [given[name] for name in names], similar, strict=True))
        if cached:
            best = self._sooner(request, terms, (ends, costs), best, now)
        return self._choice(request, terms[best], terms, now)

    def _sooner(
        self,
        request: BalancedRequest,
        terms: Sequence[ReplicaTerms],
        found: tuple[Sequence[float], Sequence[float]],
        best: int,
        now: float,
    ) -> int:
        """Return the replica that would answer soonest, if lost time covers its extra cost; otherwise `best`."""
        ends, costs = found
        cached, name = request.cached, terms[best].replica.name
        soonest = ends.index(min(ends))
        if cached.get(name, 0) <= cached.get(terms[soonest].replica.name, 0):
            return best
        lost = self._lost.get(name)
        if lost is None:
            if len(self._lost) > 2 * len(terms) + 64:
                self._lost.clear()  # most entries belong to replicas that are gone
            lost = self._lost[name] = LostTime()
        if lost.at(now) >= max(costs[soonest] - costs[best], SIMILAR_SECONDS):
            lost.clear()
            return soonest
        lost.add(ends[best] - ends[soonest], now)
        return best

    def _choice(
        self, request: BalancedRequest, best: ReplicaTerms, terms: list[ReplicaTerms], now: float
    ) -> BalancerChoice:
        name, cached, num_tokens = best.replica.name, request.cached, request.num_tokens
        num_cached = min(cached.get(name, 0), num_tokens)
        self._given[name] += num_tokens - num_cached
        found = estimate(best, num_tokens - num_cached, request.expected_output, now)
        reason = f"{num_cached} of {num_tokens} tokens are cached, and the queue takes {found.queue:.3f} s"
        hint = None
        warmest = max(terms, key=lambda each: cached.get(each.replica.name, 0)) if cached else best
        num_lost = min(cached.get(warmest.replica.name, 0), num_tokens) - num_cached
        if num_lost > 0:
            source, wait = warmest.replica.name, estimate(warmest, 0, 0, now).queue
            hint = ReplicateHint(source, name, num_lost)
            reason += f"; {source} has {num_lost} more cached, but its queue takes {wait:.3f} s"
        return BalancerChoice(name, found.first_token, found.end, num_cached, f"{reason}.", hint)


def _costs(request: BalancedRequest, terms: Sequence[ReplicaTerms], now: float) -> tuple[list[float], list[float]]:
    """Return for each replica the seconds to the request's end, and the cost, which includes the time of others.

    An idle replica will not stay idle: it is charged for as many delayed requests as the average replica.
    """
    num_tokens, num_output, cached = request.num_tokens, request.expected_output, request.cached
    average = sum(each.num_others for each in terms) / len(terms)
    ends, costs = [], []
    for replica, rate, ahead, done_at, queue, pace, num_others, _ in terms:  # hot loop: most of the choice's time
        num_uncached = max(num_tokens - cached.get(replica.name, 0), 0) if cached else num_tokens
        seconds = num_uncached / rate
        end = queue + seconds + num_output * pace
        if ahead and (left := done_at - now) > 0.0:
            end += left if left < ahead else ahead
        ends.append(end)
        costs.append(end + seconds * (num_others if num_others > average else average))
    return ends, costs


def make() -> CacheBalancer:
    """Return a new balancer."""
    return CacheBalancer()
