"""Decides whether a request may be handled: its host, its API key, and the origin of the page that sent it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from quire.config import ServeConfig
from quire.serve.access.hosts import AllowedHosts
from quire.serve.access.keys import ApiKey, ApiKeys, secret_of
from quire.serve.errors import Forbidden

METRICS = "/metrics"


class RequestHeaders(Protocol):
    """The headers of a request."""

    @property
    def hosts(self) -> Iterable[str]: ...
    def header(self, name: str) -> str | None: ...


class Authorizer(NamedTuple):
    """The rules of one server. `keyless`: paths that need no key."""

    serve: ServeConfig
    keys: ApiKeys
    hosts: AllowedHosts
    origins: Sequence[str]
    keyless: frozenset[str]

    def key_of(self, path: str, request: RequestHeaders) -> ApiKey | None:
        """The key of a request; None: its path needs none. Raises if it may not be handled."""
        if path in self.keyless or (path == METRICS and self.serve.metrics_for == "all"):
            return None
        self.hosts.check(request.hosts)
        key = self.keys.find(secret_of(request.header("authorization"), request.header("x-api-key")))
        if not self.keys:
            self._check_origin(request)
        return key

    def _check_origin(self, request: RequestHeaders) -> None:
        """Without keys, any web page in the user's browser could call this server."""
        origin, allowed = request.header("origin"), self.origins
        if origin is None or origin in allowed or "*" in allowed:
            return
        if origin.partition("://")[2] != request.header("host"):
            raise Forbidden(f"Pages of {origin} may not call this server: allow them with the setting cors_origins.")
