"""/v1/requests: the request log of this server, for the advisor."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quire.serve.admin.native import require_admin
from quire.serve.errors import NoRequestLog
from quire.serve.http.exchange import Exchange
from quire.serve.service import Service

LINES = "application/x-ndjson"
PIECE_BYTES = 1 << 20


async def show_request_log(service: Service, exchange: Exchange) -> None:
    """The request log: times, lengths, and hashes in place of tokens."""
    require_admin(exchange)
    path = service.config.serve.request_log
    if path is None:
        raise NoRequestLog
    log = Path(path).expanduser()
    if not log.exists():  # it was moved away, and no request has come since
        await exchange.respond(b"", LINES)
        return
    with await asyncio.to_thread(log.open, "rb") as file:
        await exchange.begin(200, LINES)
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            await exchange.write(piece)
        await exchange.write(b"", more=False)
