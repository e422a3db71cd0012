"""By the estimated end of each request, with what each replica has cached of its prompt.

A replica with the prefix wins as long as its queue costs less than computing the prefix elsewhere. Each request is
decided alone, so a busy replica loses the requests that are served sooner elsewhere, and no others. A prefix in demand is
then computed on a second replica, and its requests share the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, ReplicateHint, usable
from quire.gateway.estimate import Estimate, common_paces, estimate

SIMILAR = 0.02  # estimates closer than this share count as equal
SIMILAR_SECONDS = 0.002
RECOMPUTE_COST = 1.1  # computing cached tokens again also evicts others: it must save a little more than it takes


class CacheBalancer:
    """Of similar estimates the replica that this gateway has given the fewest prompt tokens: caches fill evenly."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()  # uncached prompt tokens

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the earliest estimated end."""
        candidates = usable(request, replicas)
        if not candidates:
            return None
        paces, cached = common_paces(replicas), request.cached
        best_cached = max((cached.get(each.name, 0) for each in candidates), default=0)
        found = []
        for replica in candidates:
            num_cached = min(cached.get(replica.name, 0), request.num_tokens)
            lost = (RECOMPUTE_COST - 1.0) * max(best_cached - num_cached, 0)
            num_uncached = request.num_tokens - num_cached + int(lost)
            found.append(estimate(replica, num_uncached, request.expected_output, paces, now))
        soonest = min(each.end for each in found)
        limit = soonest + max(SIMILAR_SECONDS, SIMILAR * soonest)
        similar = [each for each in found if each.end <= limit]
        chosen = min(similar, key=lambda each: (-cached.get(each.replica.name, 0), self._given[each.replica.name]))
        return self._choice(request, chosen, found)

    def _choice(self, request: BalancedRequest, chosen: Estimate, found: list[Estimate]) -> BalancerChoice:
        name, cached = chosen.replica.name, request.cached
        num_cached = min(cached.get(name, 0), request.num_tokens)
        self._given[name] += request.num_tokens - num_cached
        warmest = max(found, key=lambda each: cached.get(each.replica.name, 0))
        num_lost = cached.get(warmest.replica.name, 0) - num_cached
        reason = f"{num_cached} of {request.num_tokens} tokens are cached, and the queue takes {chosen.queue:.3f} s"
        hint = None
        if num_lost > 0:
            source = warmest.replica.name
            hint = ReplicateHint(source, name, num_lost)
            reason += f"; {source} has {num_lost} more cached, but its queue takes {warmest.queue:.3f} s"
        first, end = chosen.first_token, chosen.end
        return BalancerChoice(name, first, end, num_cached, f"{reason}.", hint)


def make() -> CacheBalancer:
    """Return a new balancer."""
    return CacheBalancer()
