"""An upstream that does what a test tells it: a server of vLLM's or llama-server's shape, and broken ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter
WORDS = ("One", " two", " three", " four", " five", " six", " seven", " eight")


@dataclass(frozen=True)
class StubRequest:
    """A request that the stub has received."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[StubRequest, Writer], Awaitable[None]]


@dataclass
class Stub:
    """A server in a thread. `answer` handles requests that generate text, and may be replaced at any time."""

    owner: str = "vllm"
    models: tuple[str, ...] = ("m",)
    answer: Behaviour = field(default_factory=lambda: stream_words())  # noqa: PLW0108  # it is defined below
    health: int = 200
    url: str = ""
    requests: list[StubRequest] = field(default_factory=list)  # all but checks

    async def handle(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            while request := await _read_request(reader):
                if request.path in ("/health", "/ready"):
                    await respond(writer, self.health, {})
                elif request.path == "/v1/models":
                    entries = [{"id": name, "object": "model", "owned_by": self.owner} for name in self.models]
                    await respond(writer, 200, {"object": "list", "data": entries})
                elif request.path.partition("?")[0] in ("/v1/load", "/v1/text", "/v1/cache/events"):
                    await respond(writer, 404, {})
                else:
                    self.requests.append(request)
                    await self.answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> StubRequest | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode().split()
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return StubRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def respond(writer: Writer, status: int, value: Any, **headers: str) -> None:
    """Send a whole JSON answer."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {each}\r\n" for name, each in head.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
    await writer.drain()


async def begin_stream(writer: Writer, content_type: str = "text/event-stream") -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()


async def write_chunk(writer: Writer, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def event(text: str | None, id: str = "stub", finish: str | None = None) -> bytes:
    delta = {"role": "assistant"} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": id, "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def stream_words(
    num_words: int = len(WORDS), pause: float = 0.0, dies_after: int | None = None, id: str = "stub", start: int = 0
) -> Behaviour:
    """A chat stream of one word an event, or a whole answer. `dies_after`: words after which it cuts the connection."""

    async def answer(request: StubRequest, writer: Writer) -> None:
        words = WORDS[start:num_words]
        if not request.json().get("stream"):
            message = {"index": 0, "message": {"role": "assistant", "content": "".join(words)}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 7, "completion_tokens": len(words)}
            await respond(writer, 200, {"id": id, "choices": [message], "usage": usage})
            return
        await begin_stream(writer)
        await write_chunk(writer, event(None, id))
        for place, word in enumerate(words):
            if place == dies_after:
                writer.transport.abort()
                return
            await asyncio.sleep(pause)
            await write_chunk(writer, event(word, id))
        usage = {"id": id, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(words)}}
        await write_chunk(
            writer, event("", id, "stop") + b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n"
        )
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


def refuse(status: int, **headers: str) -> Behaviour:
    async def answer(request: StubRequest, writer: Writer) -> None:
        await respond(writer, status, {"error": {"message": f"stub says {status}"}}, **headers)

    return answer


async def hang(request: StubRequest, writer: Writer) -> None:
    """Answer nothing until the client has gone."""
    await asyncio.sleep(3600)


async def send_garbage(request: StubRequest, writer: Writer) -> None:
    writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
    await writer.drain()


async def close_early(request: StubRequest, writer: Writer) -> None:
    writer.transport.abort()


@contextmanager
def stub(**more: Any) -> Iterator[Stub]:
    """Run a stub until the block ends."""
    made, started, loop = Stub(**more), threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(serve())
    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(lambda: [each.cancel() for each in asyncio.all_tasks(loop)])
        thread.join()
        loop.close()
