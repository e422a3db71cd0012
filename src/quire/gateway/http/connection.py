"""One connection to an upstream, and the response that it carries. One request at a time.

The parser's callbacks run for every piece of every stream. They only append to a list and wake the task that reads.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools

from quire.gateway.http.errors import UpstreamFailed

MAX_BUFFERED = 1 << 18  # unread bytes of a response, above which the socket is not read


class UpstreamResponse:
    """A response as it arrives."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_whole = False
        self.num_bytes = 0  # received of the response, the head included
        self._connection = connection
        self._pieces: list[bytes] = []
        self._num_buffered = 0
        self._error: UpstreamFailed | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for the status and the headers."""
        while not self.has_head:
            await self._wait()

    async def read(self) -> bytes:
        """All bytes of the body that have arrived, at least one; empty at its end."""
        while not self._pieces:
            if self.is_whole:
                return b""
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if self._num_buffered > MAX_BUFFERED:
            self._connection.resume_reading()
        self._num_buffered = 0
        return data

    async def read_all(self) -> bytes:
        """The whole body."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def fail(self, error: UpstreamFailed) -> None:
        """End it with an error, which the reader gets after the bytes that came before."""
        if not self.is_whole and self._error is None:
            self._error = error
            self._wake()

    def add(self, data: bytes) -> None:
        """Append a piece of the body."""
        self._pieces.append(data)
        self._num_buffered += len(data)
        if self._num_buffered > MAX_BUFFERED:
            self._connection.pause_reading()
        self._wake()

    def end(self) -> None:
        """The body is complete."""
        self.is_whole = True
        self._wake()

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """The head is complete."""
        self.status, self.headers, self.has_head = status, headers, True
        self._wake()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class UpstreamConnection(asyncio.Protocol):
    """A connection. `name` is the upstream's, for errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._response: UpstreamResponse | None = None
        self._headers: dict[str, str] = {}
        self._keeps_alive = False  # after the response
        self.is_open = False
        self.num_requests = 0  # sent on it

    # ── the pool's side ──

    @property
    def is_idle(self) -> bool:
        """Can it take another request?"""
        response = self._response
        if not self.is_open or self._transport is None or self._transport.is_closing():
            return False
        return response is None or (response.is_whole and self._keeps_alive)

    @property
    def current(self) -> UpstreamResponse | None:
        """The response that is being received, or was last."""
        return self._response

    def send(self, *parts: bytes) -> UpstreamResponse:
        """Send a request, and return its response."""
        assert self._transport is not None
        self._response = UpstreamResponse(self)
        self._parser = httptools.HttpResponseParser(self)
        self._headers = {}
        self.num_requests += 1
        self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        return self._response

    def close(self) -> None:
        """Close it now. An upstream cancels a request whose connection closes."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading the socket: the client reads slower than the upstream sends."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ── asyncio's side ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is made."""
        self._transport, self.is_open = cast(asyncio.Transport, transport), True  # uvloop's is not a subclass

    def connection_lost(self, error: Exception | None) -> None:
        """The upstream, or this side, has closed it."""
        self.is_open = False
        response = self._response
        if response is None or response.is_whole:
            return
        if response.has_head and not {"content-length", "transfer-encoding"} & response.headers.keys() and not error:
            response.end()  # without a length, the end of the connection is that of the body
            return
        response.fail(UpstreamFailed(self._name, "closed the connection before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        response = self._response
        if response is None or response.is_whole:  # nothing was asked
            self.close()
            return
        response.num_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            response.fail(UpstreamFailed(self._name, f"sent what is not HTTP ({error})"))
            self.close()

    # ── the parser's side ──

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if status >= 200 and self._response is not None:  # others come before the response
            self._keeps_alive = bool(self._parser.should_keep_alive())
            self._response.begin(status, self._headers)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._response is not None:
            self._response.add(data)

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self._response is None:
            return
        if self._response.has_head:
            self._response.end()
        else:  # 100 Continue and the like
            self._headers = {}
