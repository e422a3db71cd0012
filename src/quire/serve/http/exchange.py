"""One HTTP request and its response, directly over ASGI."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping

from starlette.types import Message, Receive, Scope, Send

from quire.observe.record import Record
from quire.serve.access.keys import ANONYMOUS
from quire.serve.dialects.contract import Dialect
from quire.serve.errors import BodyTooLarge, BodyTooSlow
from quire.serve.relayed.note import NO_NOTE, NOTE, split_note
from quire.types.errors import QuireError

SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")
JSON = "application/json"


class ClientGone(Exception):
    """The client has disconnected."""


class Exchange:
    """Read the body, then respond: whole or in pieces. Used by one task."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, dialect: Dialect) -> None:
        self.scope = scope
        self.dialect = dialect
        self.key = ANONYMOUS
        self.has_begun = False  # the status has been sent: an error can only be reported in the body
        self.timing: dict[str, float] = {}  # seconds by stage, for the Server-Timing header
        self.headers: dict[str, str] = {}  # further headers of the response
        self.num_body_bytes = 0  # read so far
        self.takes_note = False  # a gateway may send a note behind the body
        self.note = NO_NOTE  # what a gateway sent behind the body; known once that is read
        self._receive = receive
        self._send = send
        self._headers = dict(scope["headers"])  # the last one, if a name occurs twice
        request_id = self.header("x-request-id")
        self.id = request_id if request_id and SANE_ID.fullmatch(request_id) else secrets.token_hex(12)
        self.record = Record(self.id, scope["method"], scope["path"], dialect.name, time.time(), time.monotonic())
        caller = self.header("traceparent")
        if caller and SANE_ID.fullmatch(caller):
            self.record.traceparent, self.record.tracestate = caller, self.header("tracestate") or ""

    def header(self, name: str) -> str | None:
        """A header of the request."""
        value: bytes | None = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def hosts(self) -> list[str]:
        """Every Host header of the request. More than one is suspicious."""
        return [value.decode("latin-1") for name, value in self.scope["headers"] if name == b"host"]

    async def body(self, max_bytes: int, seconds: float) -> bytes:
        """The whole body."""
        length = self.header("content-length")
        if length is not None and length.isdecimal() and int(length) > max_bytes:
            raise BodyTooLarge(max_bytes)
        try:
            async with asyncio.timeout(seconds):
                body = await self._read(max_bytes)
        except TimeoutError:
            raise BodyTooSlow(seconds) from None
        if self.takes_note and (header := self.header(NOTE)):
            body, self.note = split_note(body, header)
        return body

    async def _read(self, max_bytes: int) -> bytes:
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            self.num_body_bytes = size
            if size > max_bytes:
                raise BodyTooLarge(max_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self, seconds: float) -> AsyncIterator[bytes]:
        """A body of any size, in chunks; each one must arrive within `seconds`."""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    message = await self._receive()
            except TimeoutError:
                raise BodyTooSlow(seconds) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            if part := message.get("body", b""):
                yield part
            if not message.get("more_body"):
                return

    async def gone(self) -> None:
        """Return when the client has disconnected. The body must have been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, content_type: str, more: Mapping[str, str] | None = None) -> None:
        """Send the status and the headers. `write` follows."""
        self.has_begun, self.record.status = True, status
        headers = {
            "content-type": content_type,
            "x-request-id": self.id,
            **self.dialect.headers,
            **self.headers,
            **(more or {}),
        }
        stages = {**self.timing, "total": time.monotonic() - self.record.arrived}
        headers["server-timing"] = ", ".join(f"{name};dur={seconds * 1e3:.1f}" for name, seconds in stages.items())
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, body: bytes, more: bool = True) -> None:
        """Send a piece of the body. Waits while the client does not read."""
        piece: Message = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send(piece)

    async def respond(
        self, body: bytes, content_type: str = JSON, status: int = 200, more: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole response."""
        await self.begin(status, content_type, {"content-length": str(len(body)), **(more or {})})
        await self.write(body, more=False)

    async def refuse(self, error: QuireError) -> None:
        """Respond with an error, in the client's dialect."""
        self.record.fail(error)
        more: dict[str, str] = {}
        retry_after = getattr(error, "retry_after", None)
        if retry_after is not None:
            more["retry-after"] = str(max(1, math.ceil(retry_after)))  # HTTP wants whole seconds
        if not getattr(error, "may_retry", True):
            more["x-should-retry"] = "false"  # otherwise the clients of OpenAI and Anthropic retry
        if error.status == 401:
            more["www-authenticate"] = "Bearer"
        if error.status == 405:
            more["allow"] = getattr(error, "allowed", "")
        if error.status in (408, 413):
            more["connection"] = "close"  # the rest of the body is not read
        await self.respond(self.dialect.error(error), JSON, error.status, more)
