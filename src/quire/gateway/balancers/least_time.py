"""By the estimated end of each request, as if nothing were cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, usable
from quire.gateway.estimate import Estimator, estimate


class LeastTimeBalancer:
    """Of equal estimates the replica that was chosen least often."""

    def __init__(self) -> None:
        self._estimator = Estimator()
        self._chosen: Counter[str] = Counter()

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the earliest estimated end."""
        terms = self._estimator.terms(usable(request, replicas), now)
        if not terms:
            return None
        num_tokens = request.num_tokens
        found = [(estimate(each, num_tokens, request.expected_output, now), each.replica.name) for each in terms]
        best, name = min(found, key=lambda each: (each[0].end, self._chosen[each[1]]))
        self._chosen[name] += 1
        num_cached = min(request.cached.get(name, 0), num_tokens)
        reason = f"The estimated end is the earliest: the queue takes {best.queue:.3f} s."
        return BalancerChoice(name, best.first_token, best.end, num_cached, reason)


def make() -> LeastTimeBalancer:
    """Return a new balancer."""
    return LeastTimeBalancer()
