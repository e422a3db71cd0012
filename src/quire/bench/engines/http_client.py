"""Send requests to any server that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from quire.bench.engines.http_connection import OK, ServerAddress, StreamConnection
from quire.bench.engines.openai_events import error_text
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, chat_message
from quire.bench.machine.clock import clock
from quire.types.errors import InvalidRequest, QuireError

COMPLETIONS = "/v1/completions"
PATHS = {"chat": "/v1/chat/completions", "completions": COMPLETIONS}
PROBE_TOKENS = 4


class ServerUnusable(QuireError):
    """A server does not answer, or its answers cannot be measured."""

    code = "server_unusable"
    status = 502


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server, and the settings of requests to it."""

    url: str
    model: str = ""  # empty: the first that the server lists
    api: str = "chat"
    key: str = ""
    temperature: float = 0.0
    ignore_eos: bool = True  # answers have exactly the requested length
    timeout: float = 600.0  # seconds for one answer
    extra_fields: Mapping[str, Any] = field(default_factory=dict)  # added to every body

    def __post_init__(self) -> None:
        if self.api not in PATHS:
            raise InvalidRequest(f"api is {' or '.join(PATHS)}, not {self.api!r}.", field="api")


class HttpEngineClient:
    """A client that keeps connections open and reuses them. Used by one event loop."""

    def __init__(self, target: HttpTarget) -> None:
        self.target = target
        self._address = ServerAddress.of(target.url)
        self._idle: list[StreamConnection] = []

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        """Send it now and wait for the whole answer. Errors are in the result."""
        result = RequestResult(due, *self._expectations(request))
        path, body = self._body(request)
        message = self._http_request("POST", path, msgspec.json.encode(body))
        result.sent = clock()
        await self._exchange(message, result)
        return result

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return the status and body of a page. Status 0: no answer, and the body is the error."""
        result = RequestResult(clock())
        connection = await self._exchange(self._http_request("GET", path), result)
        return (connection.status, connection.body) if connection is not None else (0, (result.error or "").encode())

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, message: bytes, result: RequestResult) -> StreamConnection | None:
        try:
            async with asyncio.timeout(self.target.timeout):
                return await self._send_message(message, result)
        except TimeoutError:
            result.error, result.ended = f"no answer within {self.target.timeout:g} s", clock()
        except OSError as error:
            result.error, result.ended = f"cannot connect: {error.strerror or error}", clock()
        return None

    async def _send_message(self, message: bytes, result: RequestResult) -> StreamConnection:
        while True:
            self._idle = [connection for connection in self._idle if connection.is_open]
            connection = self._idle.pop() if self._idle else await StreamConnection.open(self._address)
            try:
                await connection.exchange(message, result)
            except asyncio.CancelledError:
                connection.close()
                raise
            if result.error is None or not connection.was_stale:
                break
            result.error = None
        if connection.is_open:
            self._idle.append(connection)
        if connection.status != OK and result.error is None:
            result.error = f"{connection.status}: {_error_message(connection.body)}"
        return connection

    def _expectations(self, request: LoadRequest) -> tuple[int, bool, bool]:
        """Return max_tokens, must_reach_max and expects_json of the result."""
        if request.body is not None:
            return int(request.body.get("max_tokens") or 0), bool(request.body.get("ignore_eos")), False
        return request.max_tokens, self.target.ignore_eos and not request.expects_json, request.expects_json

    def _body(self, request: LoadRequest) -> tuple[str, dict[str, Any]]:
        target = self.target
        body: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
        if request.body is not None:
            return request.path, {**request.body, **body, **target.extra_fields}
        body |= {"max_tokens": request.max_tokens, "temperature": target.temperature}
        if target.ignore_eos and not request.expects_json:
            body["ignore_eos"] = True
        path = PATHS[target.api]
        if request.prompt is not None:
            path, body["prompt"] = COMPLETIONS, list(request.prompt)
        elif target.api == "chat":
            body["messages"] = request.messages
        else:
            body["prompt"] = "\n\n".join(message["content"] for message in request.messages)
        return path, {**body, **request.extra_fields, **target.extra_fields}

    def _http_request(self, method: str, path: str, body: bytes = b"") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._address.host}:{self._address.port}"]
        if self.target.key:
            lines.append(f"Authorization: Bearer {self.target.key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


def _error_message(body: bytes) -> str:
    try:
        return error_text(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace")


async def probe_server(target: HttpTarget) -> tuple[HttpTarget, list[str]]:
    """Send a short request. Return the target with settings that the server accepts, and notes for the report."""
    notes = []
    if not target.model:
        target = replace(target, model=await first_model(target))
    client = HttpEngineClient(target)
    probe = LoadRequest((chat_message("user", "Count to ten."),), PROBE_TOKENS)
    try:
        result = await client.send(probe, clock())
        if result.error is not None and result.error.startswith("4") and target.ignore_eos:
            target = client.target = replace(target, ignore_eos=False)
            result = await client.send(probe, clock())
            notes.append("The server does not accept ignore_eos: answers end where the model ends them.")
        if result.error is not None:
            raise ServerUnusable(f"{target.url} does not answer {PATHS[target.api]}: {result.error}")
        if not result.event_times:
            raise ServerUnusable(f"{target.url} answered {PATHS[target.api]} without any output.")
        if result.output_tokens is None:
            notes.append("The server sends no usage: every event is counted as one token.")
        return target, notes
    finally:
        client.close()


async def first_model(target: HttpTarget) -> str:
    """Return the name of the first model that the server lists."""
    client = HttpEngineClient(target)
    try:
        status, body = await client.get("/v1/models")
        if status != OK:
            error = body.decode(errors="replace")[:200]
            raise ServerUnusable(
                f"{target.url}/v1/models: {status or error}. Check that the server runs, or name a model with --model."
            )
        models = msgspec.json.decode(body).get("data") or []
        if not models:
            raise ServerUnusable(f"{target.url} lists no model: name one with --model.")
        return str(models[0]["id"])
    except msgspec.MsgspecError as error:
        raise ServerUnusable(f"{target.url}/v1/models is not an OpenAI model list: {error}") from error
    finally:
        client.close()
