"""One HTTP/1.1 connection that streams answers, with as little as possible between the socket and the clock.

`data_received` reads the clock before it looks at the bytes: whatever became readable together has one time. Everything
after that is done while other answers wait, so it is little: httptools takes the chunks apart, and one typed decoder
reads an event.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from quire.bench.events import DONE, decode, error_text
from quire.bench.heard import Heard, clock

OK = 200


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    is_encrypted: bool = False

    @classmethod
    def of(cls, url: str) -> Address:
        """http://host:port, with or without a path."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_encrypted = parts.scheme == "https"
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if is_encrypted else 80), is_encrypted)


class Connection(asyncio.Protocol):
    """Used for one exchange after the other."""

    def __init__(self) -> None:
        self._is_open = False
        self.num_exchanges = 0
        self.status = 0
        self.body = b""  # of an answer that is no stream
        self._parser = httptools.HttpResponseParser(self)
        self._heard: Heard | None = None
        self._done: asyncio.Future[None] | None = None
        self._rest = b""  # of a line that is not complete
        self._now = 0.0
        self._streams = False
        self._is_begun = False  # something of the answer has come
        self._is_told = False  # the stream said that it is done

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connected."""
        context = ssl.create_default_context() if address.is_encrypted else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.host, address.port, ssl=context)
        return connection

    async def exchange(self, request: bytes, heard: Heard) -> None:
        """Send the bytes of a request and hear its answer to the end."""
        self._heard, self._done = heard, asyncio.get_running_loop().create_future()
        self.status, self.body, self._rest = 0, b"", b""
        self._streams = self._is_begun = self._is_told = False
        self.num_exchanges += 1
        self._transport.write(request)
        await self._done

    @property
    def is_open(self) -> bool:
        """It can be used again. A transport may know that it is lost before it tells us."""
        return self._is_open and not self._transport.is_closing()

    @property
    def was_stale(self) -> bool:
        """The server had closed it before the last request reached it: that may be sent again."""
        return self.num_exchanges > 1 and not self._is_begun

    def close(self) -> None:
        """Leave, whatever is on its way."""
        self._is_open = False
        self._transport.abort()

    # ── called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_open = cast(asyncio.Transport, transport), True  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._now = clock()
        self._is_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        if self._is_told:  # an answer without a length ends with its connection
            self._end()
        else:
            self._fail(f"the connection was lost: {error}" if error else "the connection was closed too early")

    # ── called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streams = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self._streams or self.status != OK:
            self.body += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self._is_open = False
            self._transport.close()
        self._end()

    # ── what they come to

    def _event(self, data: bytes) -> None:
        heard = self._heard
        if heard is None:
            return
        if data == DONE:
            self._is_told = True
            return
        try:
            event = decode(data)
        except msgspec.MsgspecError as error:
            heard.error = f"not an event: {error}"
            return
        part = event.part
        if part is not None:
            heard.stamps.append(self._now)
            heard.text.append(part)
        for choice in event.choices:
            heard.finish = choice.finish_reason or heard.finish
        if event.usage is not None:
            heard.prompt_tokens, heard.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        cached = event.cached_tokens
        if cached is not None:
            heard.cached_tokens = cached
        if event.error is not None:
            heard.error = error_text(event.error)

    def _end(self) -> None:
        if self._heard is not None and self._done is not None and not self._done.done():
            self._heard.ended = self._now
            self._done.set_result(None)

    def _fail(self, why: str) -> None:
        if self._heard is not None and self._done is not None and not self._done.done():
            self._heard.error = self._heard.error or why
            self._heard.ended = clock()
            self._done.set_result(None)
