"""One HTTP/1.1 connection that streams answers, with as little as possible between the socket and the clock.

`data_received` reads the clock before it parses: all bytes that became readable together get one time. Other answers
wait while it parses, so that is kept short: httptools splits the chunks, and one typed decoder reads an event.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from quire.bench.engines.openai_events import DONE, decode_event, error_text
from quire.bench.load.request_result import RequestResult
from quire.bench.machine.clock import clock

OK = 200


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens."""

    host: str
    port: int
    is_encrypted: bool = False

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Parse http://host:port; a path is ignored."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_encrypted = parts.scheme == "https"
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if is_encrypted else 80), is_encrypted)


class StreamConnection(asyncio.Protocol):
    """A connection that carries one exchange at a time and can be reused."""

    def __init__(self) -> None:
        self._is_open = False
        self.num_exchanges = 0
        self.status = 0
        self.body = b""  # of an answer that is not an event stream
        self._parser = httptools.HttpResponseParser(self)
        self._result: RequestResult | None = None
        self._end: asyncio.Future[None] | None = None
        self._partial_line = b""
        self._now = 0.0
        self._is_event_stream = False
        self._has_data = False  # bytes of the answer have arrived
        self._is_done = False  # the stream has sent [DONE]

    @classmethod
    async def open(cls, address: ServerAddress) -> StreamConnection:
        """Connect to a server."""
        context = ssl.create_default_context() if address.is_encrypted else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.host, address.port, ssl=context)
        return connection

    async def exchange(self, request: bytes, result: RequestResult) -> None:
        """Send a request and record its answer in `result` until the end."""
        self._result, self._end = result, asyncio.get_running_loop().create_future()
        self.status, self.body, self._partial_line = 0, b"", b""
        self._is_event_stream = self._has_data = self._is_done = False
        self.num_exchanges += 1
        self._transport.write(request)
        await self._end

    @property
    def is_open(self) -> bool:
        """Whether it can be reused. A transport may be closing before `connection_lost` is called."""
        return self._is_open and not self._transport.is_closing()

    @property
    def was_stale(self) -> bool:
        """Whether the server had closed it before the last request arrived, which may then be sent again."""
        return self.num_exchanges > 1 and not self._has_data

    def close(self) -> None:
        """Close it at once, even during an exchange."""
        self._is_open = False
        self._transport.abort()

    # ── called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_open = cast(asyncio.Transport, transport), True  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._now = clock()
        self._has_data = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        if self._is_done:  # an answer without a length ends with its connection
            self._finish()
        else:
            self._fail(f"the connection was lost: {error}" if error else "the connection was closed too early")

    # ── called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_event_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self._is_event_stream or self.status != OK:
            self.body += body
            return
        *lines, self._partial_line = (self._partial_line + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._record_event(line[5:].strip())

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self._is_open = False
            self._transport.close()
        self._finish()

    # ── recording the answer

    def _record_event(self, data: bytes) -> None:
        result = self._result
        if result is None:
            return
        if data == DONE:
            self._is_done = True
            return
        try:
            event = decode_event(data)
        except msgspec.MsgspecError as error:
            result.error = f"not an event: {error}"
            return
        output = event.output
        if output is not None:
            result.event_times.append(self._now)
            result.text.append(output)
        for choice in event.choices:
            result.finish_reason = choice.finish_reason or result.finish_reason
        if event.usage is not None:
            result.prompt_tokens, result.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        cached_tokens = event.cached_tokens
        if cached_tokens is not None:
            result.cached_tokens = cached_tokens
        if event.error is not None:
            result.error = error_text(event.error)

    def _finish(self) -> None:
        if self._result is not None and self._end is not None and not self._end.done():
            self._result.ended = self._now
            self._end.set_result(None)

    def _fail(self, error: str) -> None:
        if self._result is not None and self._end is not None and not self._end.done():
            self._result.error = self._result.error or error
            self._result.ended = clock()
            self._end.set_result(None)
