"""A server that computes nothing and answers at exact times: what the generator reports of it can be checked.

`python -m quire.bench.stand_in FIRST GAP [--port N]` waits FIRST seconds before the first token of an answer, and GAP
before each other one. With both zero it answers at once, an event a write. It writes down when it really did: GET
/times tells.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quire.bench.measure import run

PROMPT_TOKENS = 7
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
EVENT = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "stand-in",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}


@dataclass(slots=True)
class Times:
    """Of one answer, on the clock of this machine."""

    received: float
    written: list[float] = field(default_factory=list)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(fields: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n")


WORD = _event(EVENT)
LAST = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class StandIn:
    """All connections of the server."""

    def __init__(self, first: float, gap: float) -> None:
        self.first, self.gap = first, gap
        self.times: list[Times] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                received = time.perf_counter()
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"POST"):
                    await self._answer(json.loads(body), writer, received)
                else:
                    self._page(head.split()[1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter, received: float) -> None:
        times = Times(received)
        self.times.append(times)
        transport, num_tokens = writer.transport, asked["max_tokens"]
        transport.write(HEAD)
        at_once = not self.first and not self.gap
        for index in range(num_tokens):
            due = received + self.first + index * self.gap
            await asyncio.sleep(0 if at_once else max(0.0, due - time.perf_counter()))
            transport.write(WORD)
            if not at_once:
                times.written.append(time.perf_counter())
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": num_tokens}
        transport.write(_event({"choices": [], "usage": usage}) + LAST)

    def _page(self, path: bytes, writer: asyncio.StreamWriter) -> None:
        told: Any = {"data": [{"id": "stand-in"}]}
        if path == b"/times":
            told = [{"received": each.received, "written": each.written} for each in self.times]
        body = json.dumps(told).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


async def main(asked: argparse.Namespace) -> None:
    """Until the process is ended."""
    server = await asyncio.start_server(StandIn(asked.first, asked.gap).serve, "127.0.0.1", asked.port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def stand_in(first: float = 0.0, gap: float = 0.0) -> Iterator[str]:
    """A stand-in in a child process: where it listens."""
    command = [sys.executable, "-m", "quire.bench.stand_in", str(first), str(gap)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=float)
    parser.add_argument("gap", type=float)
    parser.add_argument("--port", type=int, default=0)
    run(main(parser.parse_args()))
