"""A server that answers with scripted bytes, in scripted pieces."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_event(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"delta": {"content": text}, "finish_reason": finish}])


def usage(prompt: int, output: int, **more: Any) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output, **more})


DONE = b"data: [DONE]\n\n"


def response(*events: bytes) -> bytes:
    body = b"".join(events)
    return STREAM + b"Content-Length: %d\r\n\r\n" % len(body) + body


def refusal(status: int, message: str) -> bytes:
    body = json.dumps({"error": {"message": message}}).encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class ScriptedServer:
    """Answers the n-th request with the n-th answer, and all later ones with the last. An answer is pieces of bytes."""

    def __init__(self, answers: Sequence[Sequence[bytes]], closes: bool = False) -> None:
        self.answers, self.closes = list(answers), closes
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.num_connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                self.heads.append(head)
                self.bodies.append(json.loads(body) if body else {})
                for piece in self.answers[min(len(self.heads), len(self.answers)) - 1]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(script: ScriptedServer) -> AsyncIterator[str]:
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
