"""Endpoints that create, copy, delete, pull and push models. A `Library` does the work.

A change runs in a thread and streams its progress. The status waits for the first step, so that an early failure has an
error status. When the client disconnects, the change stops at its next step.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from quire.serve.admin.native import require_admin
from quire.serve.dialects.contract import BlobEndpoint, ChangeEndpoint, DecodedChange
from quire.serve.errors import NoLibrary, NoSuchBlob
from quire.serve.http.exchange import ClientGone, Exchange
from quire.serve.residency.engines import in_thread
from quire.serve.service import Service
from quire.types.errors import InvalidRequest, QuireError
from quire.types.library import Delete, Library, Step

PROGRESS_SECONDS = 0.1  # between two lines of progress
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
MAX_CHUNKS = 64  # of a blob, received and not written yet
FULL_SECONDS = 0.01  # until the next try, when there are that many
LOOK_SECONDS = 1.0  # until the writing thread checks that the client is still there


async def change_models(service: Service, exchange: Exchange, endpoint: ChangeEndpoint) -> None:
    """Create, copy, delete, pull or push a model."""
    library = _library(service, exchange)
    asked = await service.parse_body(exchange, endpoint.decode)
    if isinstance(asked.change, Delete):
        with suppress(QuireError):
            await service.models.forget(asked.change.name)
    progress = _Progress()
    doing = asyncio.ensure_future(in_thread(partial(library.change, asked.change, progress)))
    leaving = asyncio.ensure_future(exchange.gone())
    try:
        while True:
            await asyncio.wait({doing, leaving}, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                break
            if leaving.done():
                raise ClientGone
            await _write_steps(exchange, asked, progress.take())
        doing.result()  # raises before the status is sent, if it failed at once
        await _write_steps(exchange, asked, progress.take())
    except QuireError as error:
        if not exchange.has_begun:
            raise
        exchange.record.fail(error)
        await exchange.write(exchange.dialect.error(error) + b"\n", more=False)
        return
    finally:
        progress.is_over = True
        leaving.cancel()
        doing.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    if exchange.has_begun:
        await exchange.write(asked.done, more=False)
    else:
        await exchange.respond(asked.done, asked.content_type)


async def receive_blob(service: Service, exchange: Exchange, endpoint: BlobEndpoint) -> None:
    """Receive a file for a model to be created from, or tell whether it is here."""
    library = _library(service, exchange)
    digest: str = exchange.scope["path_params"]["digest"]
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise InvalidRequest(f"{digest[:80]!r} is not a digest: write sha256: and 64 hex digits.", field="digest")
    is_here = await asyncio.to_thread(library.has_blob, found[1])
    if endpoint.method == "HEAD":
        if not is_here:
            raise NoSuchBlob(found[1])
        await exchange.respond(b"")
        return
    chunks = _Chunks()
    writing = asyncio.ensure_future(in_thread(partial(library.add_blob, found[1], chunks)))
    try:
        async for chunk in exchange.chunks(service.config.serve.body_seconds):
            await chunks.put(chunk, writing)
        await chunks.put(None, writing)
    except BaseException:
        chunks.is_broken = True  # nothing is kept of a file that did not arrive whole
        raise
    await writing
    await exchange.respond(b"", status=201)


async def stored_modelfile(service: Service, name: str) -> str:
    """A Modelfile that creates the model again; empty if it is not in the store."""
    if service.library is None:
        return ""
    with suppress(QuireError):
        return await asyncio.to_thread(service.library.modelfile, name)
    return ""


def _library(service: Service, exchange: Exchange) -> Library:
    require_admin(exchange)
    if service.library is None:
        raise NoLibrary
    return service.library


async def _write_steps(exchange: Exchange, asked: DecodedChange, steps: list[Step]) -> None:
    if not asked.streams or not steps:
        return
    if not exchange.has_begun:
        await exchange.begin(200, asked.content_type, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    await exchange.write(b"".join(map(asked.step, steps)))


class _ClientLeft(Exception):
    """The client has disconnected."""


class _Progress:
    """The latest step of each file. Called in the thread that does the work, read in the loop."""

    def __init__(self) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._latest: dict[str, Step] = {}

    def __call__(self, step: Step) -> None:
        if self.is_over:
            raise _ClientLeft
        with self._lock:
            self._latest[step.what] = step

    def take(self) -> list[Step]:
        """The steps since the last call."""
        with self._lock:
            steps, self._latest = list(self._latest.values()), {}
        return steps


class _Chunks:
    """A body, passed from the loop to a thread."""

    def __init__(self) -> None:
        self.is_broken = False
        self._queue: queue.Queue[bytes | None] = queue.Queue(MAX_CHUNKS)

    async def put(self, piece: bytes | None, reader: asyncio.Future[None]) -> None:
        """Add a chunk; None ends the body. Returns at once if the reader has failed."""
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
        raise _ClientLeft
