"""Asks a server that speaks OpenAI's dialect, whoever made it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from quire.bench.asks import Ask, says
from quire.bench.connection import OK, Address, Connection
from quire.bench.events import error_text
from quire.bench.heard import Heard, clock
from quire.types.errors import InvalidRequest, QuireError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
PROBE_TOKENS = 4


class ServerUnusable(QuireError):
    """It does not answer, or not in a way that can be measured."""

    code = "server_unusable"
    status = 502


@dataclass(frozen=True, slots=True)
class Target:
    """Which server, and how it is asked."""

    url: str
    model: str = ""  # the first that the server names
    api: str = "chat"
    key: str = ""
    temperature: float = 0.0
    ignores_end: bool = True  # answers are as long as they are asked to be
    timeout: float = 600.0  # seconds for one answer
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of every body

    def __post_init__(self) -> None:
        if self.api not in PATHS:
            raise InvalidRequest(f"api is {' or '.join(PATHS)}, not {self.api!r}.", field="api")


class OverHttp:
    """Keeps connections and uses them again. Owned by one event loop."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._address = Address.of(target.url)
        self._idle: list[Connection] = []

    async def ask(self, ask: Ask, due: float) -> Heard:
        """Send it now. What goes wrong stands in the answer."""
        heard = Heard(due, *self._promise(ask))
        path, body = self._body(ask)
        request = self._request("POST", path, msgspec.json.encode(body))
        heard.sent = clock()
        await self._exchange(request, heard)
        return heard

    async def get(self, path: str) -> tuple[int, bytes]:
        """A page of the server: its status, 0 if there is none, and its bytes."""
        heard = Heard(clock())
        connection = await self._exchange(self._request("GET", path), heard)
        return (connection.status, connection.body) if connection is not None else (0, (heard.error or "").encode())

    def close(self) -> None:
        """All connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, request: bytes, heard: Heard) -> Connection | None:
        try:
            async with asyncio.timeout(self.target.timeout):
                return await self._send(request, heard)
        except TimeoutError:
            heard.error, heard.ended = f"no answer within {self.target.timeout:g} s", clock()
        except OSError as error:
            heard.error, heard.ended = f"cannot connect: {error.strerror or error}", clock()
        return None

    async def _send(self, request: bytes, heard: Heard) -> Connection:
        while True:
            self._idle = [connection for connection in self._idle if connection.is_open]
            connection = self._idle.pop() if self._idle else await Connection.open(self._address)
            try:
                await connection.exchange(request, heard)
            except asyncio.CancelledError:
                connection.close()
                raise
            if heard.error is None or not connection.was_stale:
                break
            heard.error = None
        if connection.is_open:
            self._idle.append(connection)
        if connection.status != OK and heard.error is None:
            heard.error = f"{connection.status}: {_complaint(connection.body)}"
        return connection

    def _promise(self, ask: Ask) -> tuple[int, bool, bool]:
        if ask.body is not None:
            return int(ask.body.get("max_tokens") or 0), bool(ask.body.get("ignore_eos")), False
        return ask.max_tokens, self.target.ignores_end and not ask.wants_json, ask.wants_json

    def _body(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        target = self.target
        fixed: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
        if ask.body is not None:
            return ask.path, {**ask.body, **fixed, **target.more}
        fixed |= {"max_tokens": ask.max_tokens, "temperature": target.temperature}
        if target.ignores_end and not ask.wants_json:
            fixed["ignore_eos"] = True
        if target.api == "chat":
            fixed["messages"] = ask.messages
        else:
            fixed["prompt"] = "\n\n".join(message["content"] for message in ask.messages)
        return PATHS[target.api], {**fixed, **ask.more, **target.more}

    def _request(self, verb: str, path: str, body: bytes = b"") -> bytes:
        lines = [f"{verb} {path} HTTP/1.1", f"Host: {self._address.host}:{self._address.port}"]
        if self.target.key:
            lines.append(f"Authorization: Bearer {self.target.key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


def _complaint(body: bytes) -> str:
    try:
        return error_text(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace")


async def reach(target: Target) -> tuple[Target, list[str]]:
    """The target as it can be asked, and what has to be known about it. Fails if it cannot be."""
    notes = []
    if not target.model:
        target = replace(target, model=await first_model(target))
    server = OverHttp(target)
    probe = Ask((says("user", "Count to ten."),), PROBE_TOKENS)
    try:
        heard = await server.ask(probe, clock())
        if heard.error is not None and heard.error.startswith("4") and target.ignores_end:
            target = server.target = replace(target, ignores_end=False)
            heard = await server.ask(probe, clock())
            notes.append("The server does not take ignore_eos: answers end where the model ends them.")
        if heard.error is not None:
            raise ServerUnusable(f"{target.url} does not answer {PATHS[target.api]}: {heard.error}")
        if not heard.stamps:
            raise ServerUnusable(f"{target.url} answered {PATHS[target.api]} without a part of an answer.")
        if heard.output_tokens is None:
            notes.append("The server sends no usage: every event is counted as one token.")
        return target, notes
    finally:
        server.close()


async def first_model(target: Target) -> str:
    server = OverHttp(target)
    try:
        status, body = await server.get("/v1/models")
        if status != OK:
            said = body.decode(errors="replace")[:200]
            raise ServerUnusable(f"{target.url}/v1/models: {status or said}. Is it running? Name a --model?")
        listed = msgspec.json.decode(body).get("data") or []
        if not listed:
            raise ServerUnusable(f"{target.url} names no model: give one with --model.")
        return str(listed[0]["id"])
    except msgspec.MsgspecError as error:
        raise ServerUnusable(f"{target.url}/v1/models is not what OpenAI's servers answer: {error}") from error
    finally:
        server.close()
