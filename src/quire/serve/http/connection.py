"""A client's connection with time limits: it is closed if the client sends or reads too slowly.

Each limit starts at a fixed moment, so that a byte now and then does not extend it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.config import ServeConfig

MAX_HEADER_BYTES = 1 << 16
TOO_SLOW, TOO_LARGE = (408, "Request Timeout"), (431, "Request Header Fields Too Large")


def connection_for(serve: ServeConfig) -> type[Connection]:
    """The protocol class for these settings; uvicorn makes an instance for each connection."""

    class _Configured(Connection):
        settings = serve

    return _Configured


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with three timers: for headers, for a body that no handler reads, and for unread responses."""

    settings: ServeConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for the headers of a new client."""
        self._num_header_bytes = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(transport)
        self._start("headers", self.settings.header_seconds, self._refuse_headers)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for name in tuple(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Limit the size of headers."""
        super().data_received(data)
        if "headers" in self._timers:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(
                    *TOO_LARGE, f"The headers are larger than {MAX_HEADER_BYTES} bytes, the limit of this server."
                )

    def on_message_begin(self) -> None:
        """Start the timer of a further request on the same connection."""
        super().on_message_begin()
        if "headers" not in self._timers:
            self._num_header_bytes = 0
            self._start("headers", self.settings.header_seconds, self._refuse_headers)

    def on_headers_complete(self) -> None:
        """The handler limits the body from here on."""
        self._stop("headers")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete."""
        self._stop("rest")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """If the body of an answered request is still arriving, read and drop it for a while."""
        super().on_response_complete()
        cycle = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body and not self.transport.is_closing():
            self._start("rest", self.settings.body_seconds, self.transport.close)

    def pause_writing(self) -> None:
        """The client does not read: limit how long."""
        super().pause_writing()
        self._start("reading", self.settings.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._stop("reading")
        super().resume_writing()

    def _refuse_headers(self) -> None:
        if self._num_header_bytes:
            self._refuse(*TOO_SLOW, f"The headers did not arrive within {self.settings.header_seconds:g} s.")
        else:  # no request was begun
            self.transport.close()

    def _refuse(self, status: int, reason: str, public: str) -> None:
        self._stop("headers")
        if not self.transport.is_closing():
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(public)}\r\n\r\n{public}".encode())
            self.transport.close()

    def _start(self, name: str, seconds: float, then: Any) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, then)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
