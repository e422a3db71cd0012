"""Endpoints that change what models there are. Who keeps them is not known here: a `Library` does it.

A change runs in a thread, and its steps are told as they come. As with answers, the status waits for the first step,
so that what fails at once is told by it. When the client goes, the change ends at its next step.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from quire.serve.admin.native import only_admin
from quire.serve.dialects.contract import BlobEndpoint, ChangeEndpoint, DecodedChange
from quire.serve.errors import NoLibrary, NoSuchBlob
from quire.serve.http.exchange import ClientGone, Exchange
from quire.serve.residency.engines import in_thread
from quire.serve.service import Service
from quire.types.errors import InvalidRequest, QuireError
from quire.types.library import Delete, Library, Step

TELL_SECONDS = 0.1  # between two lines of progress
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
MAX_WAITING = 64  # pieces of a blob that are not written yet
FULL_SECONDS = 0.01  # until we look whether some of them are
LOOK_SECONDS = 1.0  # until the thread that writes looks whether anybody still sends


async def change(service: Service, exchange: Exchange, endpoint: ChangeEndpoint) -> None:
    """Change what models there are."""
    library = _library(service, exchange)
    asked = await service.parsed(exchange, endpoint.decode)
    if isinstance(asked.change, Delete):
        with suppress(QuireError):
            service.models.forget(asked.change.name)
    telling = _Telling()
    doing = asyncio.ensure_future(in_thread(partial(library.change, asked.change, telling)))
    leaving = asyncio.ensure_future(exchange.gone())
    try:
        while True:
            await asyncio.wait({doing, leaving}, timeout=TELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                break
            if leaving.done():
                raise ClientGone
            await _tell(exchange, asked, telling.take())
        doing.result()  # raises before anything is told, if it failed at once
        await _tell(exchange, asked, telling.take())
    except QuireError as error:
        if not exchange.has_begun:
            raise
        exchange.record.fail(error)
        await exchange.write(exchange.dialect.error(error) + b"\n", more=False)
        return
    finally:
        telling.is_over = True
        leaving.cancel()
        doing.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    if exchange.has_begun:
        await exchange.write(asked.done, more=False)
    else:
        await exchange.respond(asked.done, asked.content_type)


async def take(service: Service, exchange: Exchange, endpoint: BlobEndpoint) -> None:
    """Take in a file that a model will be made of, or say whether it is here."""
    library = _library(service, exchange)
    given: str = exchange.scope["path_params"]["digest"]
    found = DIGEST.fullmatch(given)
    if found is None:
        raise InvalidRequest(f"{given[:80]!r} is no digest: write sha256: and 64 hex digits.", field="digest")
    is_here = await asyncio.to_thread(library.has_blob, found[1])
    if endpoint.method == "HEAD":
        if not is_here:
            raise NoSuchBlob(found[1])
        await exchange.respond(b"")
        return
    pieces = _Pieces()
    writing = asyncio.ensure_future(in_thread(partial(library.add_blob, found[1], pieces)))
    try:
        async for chunk in exchange.chunks(service.config.serve.body_seconds):
            await pieces.put(chunk, writing)
        await pieces.put(None, writing)
    except BaseException:
        pieces.is_broken = True  # of a client that went away, nothing is kept
        raise
    await writing
    await exchange.respond(b"", status=201)


async def modelfile_of(service: Service, name: str) -> str:
    """What makes a model again; empty if it is not kept."""
    if service.library is None:
        return ""
    with suppress(QuireError):
        return await asyncio.to_thread(service.library.modelfile, name)
    return ""


def _library(service: Service, exchange: Exchange) -> Library:
    only_admin(exchange)
    if service.library is None:
        raise NoLibrary
    return service.library


async def _tell(exchange: Exchange, asked: DecodedChange, steps: list[Step]) -> None:
    if not asked.streams or not steps:
        return
    if not exchange.has_begun:
        await exchange.begin(200, asked.content_type, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    await exchange.write(b"".join(map(asked.step, steps)))


class _Left(Exception):
    """Nobody waits for the change any more."""


class _Telling:
    """Steps on their way from the thread that does them: of each thing, the latest. Called there, taken in the loop."""

    def __init__(self) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._latest: dict[str, Step] = {}

    def __call__(self, step: Step) -> None:
        if self.is_over:
            raise _Left
        with self._lock:
            self._latest[step.what] = step

    def take(self) -> list[Step]:
        """What is new."""
        with self._lock:
            steps, self._latest = list(self._latest.values()), {}
        return steps


class _Pieces:
    """A body on its way into a thread."""

    def __init__(self) -> None:
        self.is_broken = False
        self._queue: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)

    async def put(self, piece: bytes | None, reader: asyncio.Future[None]) -> None:
        """None: that was all. A reader that has ended, because it failed, needs no more."""
        while not reader.done():
            try:
                self._queue.put_nowait(piece)
                return
            except queue.Full:
                await asyncio.sleep(FULL_SECONDS)

    def __iter__(self) -> Iterator[bytes]:
        while not self.is_broken:
            try:
                piece = self._queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if piece is None:
                return
            yield piece
        raise _Left
