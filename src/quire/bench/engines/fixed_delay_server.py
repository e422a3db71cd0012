"""A server that computes nothing and answers with fixed delays, so that what the load generator reports can be checked.

`python -m quire.bench.engines.fixed_delay_server FIRST GAP [--port N]` waits FIRST seconds before the first token of an
answer and GAP before each further one. With both zero it answers at once, one event a write. GET /times returns the
times at which it received requests and wrote tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from quire.bench.engines.server_process import child_server
from quire.bench.load.event_loop import run_async

PROMPT_TOKENS = 7
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
EVENT = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "fixed-delay",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}


@dataclass(slots=True)
class AnswerTimes:
    """When one request was received and its tokens were written, on `time.perf_counter`."""

    received: float
    written: list[float] = field(default_factory=list)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(fields: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n")


WORD = _event(EVENT)
LAST = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class FixedDelayServer:
    """The handler of all connections."""

    def __init__(self, first: float, gap: float) -> None:
        self.first, self.gap = first, gap
        self.times: list[AnswerTimes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
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

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter, received: float) -> None:
        times = AnswerTimes(received)
        self.times.append(times)
        transport, num_tokens = writer.transport, body["max_tokens"]
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
        page: Any = {"data": [{"id": "fixed-delay"}]}
        if path == b"/times":
            page = [{"received": each.received, "written": each.written} for each in self.times]
        body = json.dumps(page).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


async def main(options: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(FixedDelayServer(options.first, options.gap).serve, "127.0.0.1", options.port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def fixed_delay_server(first: float = 0.0, gap: float = 0.0) -> Iterator[str]:
    """Run the server in a child process. Yield its URL."""
    command = [sys.executable, "-m", "quire.bench.engines.fixed_delay_server", str(first), str(gap)]
    with child_server(command) as (_, url):
        yield url


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=float)
    parser.add_argument("gap", type=float)
    parser.add_argument("--port", type=int, default=0)
    with suppress(KeyboardInterrupt):
        run_async(main(parser.parse_args()))
