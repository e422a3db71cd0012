"""Endpoints of our own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from quire import __version__
from quire.serve.dialect import Dialect
from quire.serve.errors import ModelLoading, ShuttingDown
from quire.serve.exchange import Exchange
from quire.serve.models import RETRY_SECONDS
from quire.serve.service import Service
from quire.types.errors import QuireError


def error_body(error: QuireError) -> bytes:
    """What goes wrong, plainly."""
    facts = {"code": error.code, "message": error.public, "field": getattr(error, "field", None)}
    return msgspec.json.encode({"error": {name: fact for name, fact in facts.items() if fact is not None}})


NATIVE = Dialect("native", endpoints=(), error=error_body, headers={}, schemas={})


async def health(service: Service, exchange: Exchange) -> None:
    """The process is alive."""
    await exchange.respond(b'{"status":"ok"}')


async def ready(service: Service, exchange: Exchange) -> None:
    """All models are loaded."""
    if service.is_draining:
        raise ShuttingDown
    for model in service.models:
        if model.error is not None:
            raise model.error
        if not model.is_ready:
            raise ModelLoading(model.name, RETRY_SECONDS)
    await exchange.respond(b'{"status":"ready"}')


async def version(service: Service, exchange: Exchange) -> None:
    """Which Quire this is."""
    await exchange.respond(msgspec.json.encode({"version": __version__}))


Handle = Callable[[Service, Exchange], Awaitable[None]]
ROUTES: tuple[tuple[str, str, Handle], ...] = (
    ("GET", "/health", health),
    ("GET", "/ready", ready),
    ("GET", "/version", version),
)
