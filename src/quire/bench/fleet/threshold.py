"""A model of the published policy of another gateway, for comparison: affinity with a global switch.

If the most loaded replica has over `abs_threshold` more requests than the least loaded, and over `rel_threshold` times
as many, every request goes to the shortest queue. Otherwise a request goes to the replica with the longest match, if
that is over `cache_threshold` of its prompt, else to the least loaded one. The switch is global: one hot replica turns
affinity off for all prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, usable


class ThresholdBalancer:
    """Loads are counted by requests that are open at this gateway."""

    def __init__(self, cache_threshold: float = 0.3, abs_threshold: int = 64, rel_threshold: float = 1.5) -> None:
        self.cache_threshold = cache_threshold
        self.abs_threshold = abs_threshold
        self.rel_threshold = rel_threshold

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the replica that the policy chooses."""
        candidates = usable(request, replicas)
        if not candidates:
            return None
        loads = [each.num_open for each in candidates]
        most, fewest = max(loads), min(loads)
        is_off = most - fewest > self.abs_threshold and most > self.rel_threshold * fewest
        chosen = min(candidates, key=lambda each: each.num_open)
        if not is_off:
            warmest = max(candidates, key=lambda each: request.cached.get(each.name, 0))
            if request.cached.get(warmest.name, 0) > self.cache_threshold * request.num_tokens:
                chosen = warmest
        num_cached = min(request.cached.get(chosen.name, 0), request.num_tokens)
        return BalancerChoice(chosen.name, num_cached=num_cached, reason="off" if is_off else "on")
