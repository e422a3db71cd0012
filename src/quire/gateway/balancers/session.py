"""All requests of a session to one replica; requests without a session by the estimated end.

The replica is chosen by rendezvous hashing: every gateway chooses the same one, and when a replica is added or removed,
only the sessions that it gets or had move.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, usable
from quire.gateway.balancers.least_time import LeastTimeBalancer


class SessionBalancer:
    """Has no memory of sessions."""

    def __init__(self) -> None:
        self._others = LeastTimeBalancer()

    def choose(self, request: BalancedRequest, replicas: Sequence[Replica], now: float) -> BalancerChoice | None:
        """Return the session's replica among those that are available."""
        if not request.session:
            return self._others.choose(request, replicas, now)
        candidates = usable(request, replicas)
        if not candidates:
            return None
        replica = max(candidates, key=lambda each: _rank(request.session, each.name))
        num_cached = min(request.cached.get(replica.name, 0), request.num_tokens)
        return BalancerChoice(replica.name, num_cached=num_cached, reason="It serves this session.")


def _rank(session: str, name: str) -> bytes:
    data = f"{len(name)}:{name}{session}".encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8).digest()


def make() -> SessionBalancer:
    """Return a new balancer."""
    return SessionBalancer()
