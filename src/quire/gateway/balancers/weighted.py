"""In proportion to the replicas' weights, spread evenly over time."""

from __future__ import annotations

from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, usable


class WeightedBalancer:
    """Each request adds a replica's weight to its credit; the chosen one pays the sum of all weights."""

    def __init__(self) -> None:
        self._credits: dict[str, float] = {}

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica with the most credit. One of weight 0 is chosen only if there is no other."""
        candidates = usable(request, replicas)
        weighted = [each for each in candidates if each.weight > 0.0]
        if not weighted:
            return BalancerChoice(candidates[0].name, reason="No other is available.") if candidates else None
        credits = {each.name: self._credits.get(each.name, 0.0) + each.weight for each in weighted}
        name = max(credits, key=credits.__getitem__)
        total = sum(each.weight for each in weighted)
        credits[name] -= total
        self._credits = credits
        num_cached = min(request.cached.get(name, 0), request.num_tokens)
        share = next(each.weight for each in weighted if each.name == name) / total
        return BalancerChoice(name, num_cached=num_cached, reason=f"Its weight is {share:.0%} of all.")


def make() -> WeightedBalancer:
    """Return a new balancer."""
    return WeightedBalancer()
