"""By the estimated end of each request, with what each replica has cached of its prompt.

A replica with the prefix wins as long as its queue costs less than computing the prefix elsewhere. Each request is
decided alone, so a busy replica loses the requests that are served sooner elsewhere, and no others. A prefix in demand
is then computed on a second replica, and its requests share the two. The time that computing a prompt takes from the
other requests of a replica counts too: on a busy fleet a prefix is computed again only if it saves more than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, ReplicateHint, usable
from quire.gateway.estimate import Estimator, ReplicaTerms, estimate

SIMILAR = 0.02  # estimates closer than this share count as equal
SIMILAR_SECONDS = 0.002
OTHERS_COST = 1.0  # of a second that each other request there waits, relative to one of this request
RECOMPUTE_COST = 1.1  # computing cached tokens again also evicts others: it must save a little more than it takes


class CacheBalancer:
    """Of similar estimates the replica that this gateway has given the fewest prompt tokens: caches fill evenly."""

    def __init__(self) -> None:
        self._estimator = Estimator()
        self._given: Counter[str] = Counter()  # uncached prompt tokens

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the earliest estimated end."""
        terms = self._estimator.terms(usable(request, replicas), now)
        if not terms:
            return None
        num_tokens, num_output, cached = request.num_tokens, request.expected_output, request.cached
        most = max((cached.get(each.replica.name, 0) for each in terms), default=0) if cached else 0
        cold = num_tokens + int((RECOMPUTE_COST - 1.0) * most)  # of a replica that has nothing cached
        if most:
            weights = {name: int(RECOMPUTE_COST * min(count, num_tokens)) for name, count in cached.items()}
            needed = [cold - weights.get(each.replica.name, 0) for each in terms]
        else:
            needed = [cold] * len(terms)
        ends = []
        for (_, rate, ahead, reported_at, queue, pace, num_others), num_uncached in zip(terms, needed, strict=True):
            # Inlined `estimate`: this loop is the choice's cost.
            end = queue + num_uncached / rate * (1.0 + OTHERS_COST * num_others) + num_output * pace
            if ahead and (left := ahead / rate - (now - reported_at)) > 0.0:
                end += left
            ends.append(end)
        limit = min(ends)
        limit += max(SIMILAR_SECONDS, SIMILAR * limit)
        similar = [each for each, end in zip(terms, ends, strict=True) if end <= limit]
        best = min(similar, key=lambda each: (-cached.get(each.replica.name, 0), self._given[each.replica.name]))
        return self._choice(request, best, terms, now)

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


def make() -> CacheBalancer:
    """Return a new balancer."""
    return CacheBalancer()
