"""One server behind the gateway: its connections, what the last check found, and whether it may get requests."""

from __future__ import annotations

import time
from typing import Any

from quire.config import GatewayConfig
from quire.gateway.health.breaker import Breaker
from quire.gateway.http.pool import ConnectionPool
from quire.gateway.upstreams.declared import AUTO, KINDS, QUIRE, UpstreamSpec
from quire.types.transfer import Role


class Upstream:
    """Used in the event loop's thread."""

    def __init__(self, spec: UpstreamSpec, source: str, config: GatewayConfig) -> None:
        self.spec = spec
        self.source = source  # who named it: file, flag, kubernetes, joined
        self.pool = ConnectionPool(spec.name, spec.url, spec.tls, config.connect_seconds)
        self.breaker = Breaker(config.max_failures)
        self.kind = spec.kind  # AUTO until its first answer
        self.models: tuple[str, ...] = spec.models
        self.role: str = Role.BOTH  # as it registered, or reported last
        self.is_ready = False
        self.is_draining = False  # drained by an operator: it gets no new requests, and may finish those that it has
        self.is_leaving = False  # it has said that it will end
        self.is_gone = False  # removed from the fleet
        self.problem = "has not been checked yet"
        self.checked_at: float | None = None
        self.num_failed_checks = 0
        self.num_requests = 0
        self.num_failures = 0
        self.num_resumed = 0  # streams that were continued elsewhere

    @property
    def name(self) -> str:
        """Its name, unique in the fleet."""
        return self.spec.name

    @property
    def is_quire(self) -> bool:
        """Does it take notes, and send frames, events and loads?"""
        return self.kind == QUIRE

    def speaks(self, dialect: str) -> bool:
        """Does it have this API? For an unknown kind or path: assume that it does."""
        return self.kind == AUTO or dialect not in KINDS[QUIRE] or dialect in KINDS[self.kind]

    def serves(self, model: str) -> bool:
        """Does it have this model? A request without a model goes anywhere."""
        return not model or model in self.models

    def may_serve(self, now: float) -> bool:
        """May it get a request now?"""
        is_used = not (self.is_draining or self.is_leaving or self.is_gone)
        return self.is_ready and is_used and self.breaker.allows(now)

    def headers(self) -> dict[str, str]:
        """The headers that every request to it has."""
        return {"authorization": f"Bearer {self.spec.key}"} if self.spec.key else {}

    def describe(self, now: float) -> dict[str, Any]:
        """For GET /v1/upstreams."""
        state = "draining" if self.is_draining or self.is_leaving else "ready" if self.is_ready else "not ready"
        return {
            "name": self.name,
            "url": self.spec.url,
            "kind": self.kind,
            "role": self.role,
            "source": self.source,
            "state": state,
            "problem": self.problem if not self.is_ready else "",
            "circuit": self.breaker.state(now),
            "weight": self.spec.weight,
            "models": list(self.models),
            "seconds_since_check": None if self.checked_at is None else round(time.monotonic() - self.checked_at, 3),
            "num_open": self.pool.num_busy,
            "num_requests": self.num_requests,
            "num_failures": self.num_failures,
            "num_resumed": self.num_resumed,
        }
