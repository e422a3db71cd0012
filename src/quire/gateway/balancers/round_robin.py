"""One replica after the other."""

from __future__ import annotations

from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, usable


class RoundRobinBalancer:
    """Skips replicas that are not available, and keeps its place when they return."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica after the last one, in the order of their names."""
        candidates = sorted(usable(request, replicas), key=lambda each: each.name)
        if not candidates:
            return None
        replica = next((each for each in candidates if each.name > self._last), candidates[0])
        self._last = replica.name
        num_cached = min(request.cached.get(replica.name, 0), request.num_tokens)
        return BalancerChoice(replica.name, num_cached=num_cached, reason="It is next in turn.")


def make() -> RoundRobinBalancer:
    """Return a new balancer."""
    return RoundRobinBalancer()
