"""By what each request costs: its own time, and the time that computing its prompt takes from other requests.

    own time = wait in the queue + computing what is not cached + output
    cost     = own time + seconds of computing × requests that stand still meanwhile

A replica with the prefix has the least cost unless its queue is long. Each request is decided alone, so a busy replica
loses the requests that are cheaper elsewhere, and no others. Computing a prefix on a second replica rarely pays for one
request: it pays if many follow. So the time that requests lose by waiting for a replica that has their prefixes is
added up. As soon as it covers the cost of a second copy, the next one is computed elsewhere, and its requests share the
two. A prefix in demand gets its copies soon, one that is asked for now and then none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, ReplicateHint, usable
from quire.gateway.estimate import Estimator, ReplicaTerms, estimate

SIMILAR = 0.02  # costs closer than this share count as equal
SIMILAR_SECONDS = 0.002
MEMORY_SECONDS = 5.0  # in which lost time fades to a half: what was lost lately is what a copy will save


class LostTime:
    """The seconds that requests lost lately by waiting for a replica, though another would have answered sooner."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = 0.0

    def at(self, now: float) -> float:
        """Return what counts of it now."""
        return self._seconds * 0.5 ** ((now - self._at) / MEMORY_SECONDS) if self._seconds else 0.0

    def add(self, seconds: float, now: float) -> None:
        """Add a request's loss."""
        self._seconds, self._at = self.at(now) + seconds, now

    def clear(self) -> None:
        """Count from 0 again: a copy was made."""
        self._seconds = 0.0


class CacheBalancer:
    """Of similar costs the replica that this gateway has given the fewest prompt tokens: caches fill evenly."""

    def __init__(self) -> None:
        self._estimator = Estimator()
        self._given: Counter[str] = Counter()  # uncached prompt tokens
        self._lost: dict[str, LostTime] = {}

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the least cost, or a sooner one if that pays for requests to come."""
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
        """Return a replica that would answer sooner than the best, if lost time covers what it costs more."""
        ends, costs = found
        cached, name = request.cached, terms[best].replica.name
        soonest = ends.index(min(ends))
        if cached.get(name, 0) <= cached.get(terms[soonest].replica.name, 0):
            return best
        lost = self._lost.get(name)
        if lost is None:
            if len(self._lost) > 2 * len(terms) + 64:
                self._lost.clear()  # mostly of replicas that are gone
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
    """Return for each replica when the request would end there, and what it would cost with the time of others.

    An idle replica will not stay idle: on it others count as many as on the average replica.
    """
    num_tokens, num_output, cached = request.num_tokens, request.expected_output, request.cached
    average = sum(each.num_others for each in terms) / len(terms)
    ends, costs = [], []
    for replica, rate, ahead, done_at, queue, pace, num_others, _ in terms:  # this loop is the choice's cost
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
