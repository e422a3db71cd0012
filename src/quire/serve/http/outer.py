"""The wrapper of every handler of the server and the gateway: each request gets one answer and one record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from typing import Protocol

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from quire.observe.log import error_origin
from quire.observe.record import Record
from quire.serve.errors import InternalError, ShuttingDown
from quire.serve.generation.routing import MODEL, ROUTE
from quire.serve.http.exchange import ClientGone, Exchange
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

EXPOSED = ("x-request-id", "retry-after", "server-timing", ROUTE, MODEL)


class CountsRequests(Protocol):
    """A service that counts its running requests and takes their records."""

    num_running: int

    def report(self, record: Record) -> None:
        """Take the record of a request that has ended."""


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let web pages of these origins use the application."""
    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED)


async def answer(service: CountsRequests, exchange: Exchange, handling: Awaitable[None]) -> None:
    """Await the handler of a request. An error that it raises becomes the answer; the record is always reported."""
    service.num_running += 1
    try:
        await handling
    except ClientGone:
        pass
    except QuireError as error:
        await _refuse(exchange, error)
    except asyncio.CancelledError:  # the server shuts down
        await _refuse(exchange, ShuttingDown())
    except Exception as error:
        logger.error("a request failed: %s", error_origin(error), extra={"request_id": exchange.id})
        await _refuse(exchange, InternalError(exchange.id))
    finally:
        exchange.record.ended = time.monotonic()
        service.num_running -= 1
        service.report(exchange.record)


async def _refuse(exchange: Exchange, error: QuireError) -> None:
    """Answer with the error. After the status was sent, the connection closes in the middle of the body instead."""
    if not exchange.has_begun:
        await exchange.refuse(error)
    elif exchange.record.error is None:
        exchange.record.fail(error)
