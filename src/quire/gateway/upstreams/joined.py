"""Servers that register themselves: `quire serve --join GATEWAY` sends a heartbeat, and leaves when it drains."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from quire.gateway.upstreams.declared import spec_of_url
from quire.gateway.upstreams.registry import Upstreams
from quire.types.transfer import Role

logger = logging.getLogger(__name__)

JOINED = "joined"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a server says of itself."""

    url: str
    name: str = ""
    kind: str = "auto"
    key: str = ""  # with which the gateway calls it
    role: str = Role.BOTH


class JoinedUpstreams:
    """The servers that have registered. One that sends no heartbeat for `seconds` is removed."""

    def __init__(self, upstreams: Upstreams, seconds: float) -> None:
        self._upstreams = upstreams
        self._seconds = seconds
        self._seen: dict[str, float] = {}

    def join(self, registration: Registration, now: float) -> str:
        """Add a server, or note that it is alive. Returns its name in the fleet."""
        spec = spec_of_url(registration.url, registration.name, registration.kind, registration.key)
        known = self._upstreams.get(spec.name)
        if known is not None and known.source == JOINED and known.spec != spec:
            self._upstreams.remove(spec.name)  # it has restarted with another URL or key
        upstream = self._upstreams.add(JOINED, spec)
        upstream.is_leaving, upstream.role = False, registration.role
        if upstream.source == JOINED:
            self._seen[upstream.name] = now
        return upstream.name

    def leave(self, registration: Registration) -> bool:
        """A server is draining: it gets no more requests. Was it known?"""
        url = registration.url.rstrip("/")
        found = [each for each in self._upstreams if each.spec.url == url]
        for upstream in found:
            upstream.is_leaving = True
            logger.info("upstream %s is leaving", upstream.name)
        return bool(found)

    def expire(self, now: float) -> None:
        """Remove servers whose heartbeat has stopped."""
        for name, seen in tuple(self._seen.items()):
            if now - seen > self._seconds:
                del self._seen[name]
                logger.warning("upstream %s has sent no heartbeat for %g s", name, self._seconds)
                self._upstreams.remove(name)
