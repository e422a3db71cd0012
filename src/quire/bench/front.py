"""How many tokens one front process streams: HTTP clients on one side, an engine that answers at once on the other.

Three processes: this one has the clients, raw sockets that only count; the front is a whole server in a child; the
engine is a child of that. `at once` lets the engine run freely, so tokens that pile up are put together. `paced` has it
make a step of all streams at a fixed rate: then every token should be an event of its own, and what the front's
processor time is for each is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from quire.bench.figure import Figure, at_least, at_most
from quire.config import load
from quire.serve.http.app import all_dialects
from quire.serve.processes.server import Serving
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import ModelEntry
from quire.serve.service import Service

NUM_STREAMS = 256
PACE = 16_000.0  # tokens a second
ENTRY = "quire.bench.instant_engine:main"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    tokens_per_second: float
    events_per_token: float
    front_seconds_per_token: float  # of processor time


def run(model: str) -> list[Figure]:
    """Both figures."""
    at_once, paced = _measure(model, "inf", 512), _measure(model, str(PACE), 256)
    return [
        Figure(f"at once, {NUM_STREAMS} streams", at_once.tokens_per_second, "tok/s", at_least(15_000), _note(at_once)),
        Figure(
            f"paced at {PACE:,.0f} tok/s, {NUM_STREAMS} streams", paced.tokens_per_second, "tok/s", note=_note(paced)
        ),
        Figure("processor time of the front for a token", paced.front_seconds_per_token * 1e6, "µs", at_most(60.0)),
    ]


def _note(measured: Measured) -> str:
    micros = measured.front_seconds_per_token * 1e6
    return f"{measured.events_per_token:.2f} events a token, {micros:.0f} µs of the front's processor"


def _measure(model: str, pace: str, num_tokens: int) -> Measured:
    with front(model, pace) as (pid, url):
        asyncio.run(_clients(url, 8, 16))  # warm
        before = _processor_seconds(pid)
        began, ended, num_events = asyncio.run(_clients(url, NUM_STREAMS, num_tokens))
        used = _processor_seconds(pid) - before
    total = NUM_STREAMS * num_tokens
    return Measured(total / (ended - began), num_events / total, used / total)


@contextmanager
def front(model: str, pace: str | None, **settings: int) -> Iterator[tuple[int, str]]:
    """A server in a child: its process, and where it listens. A pace of None is the model's own."""
    order = f"from quire.bench.front import serve; serve({model!r}, {pace!r}, {settings!r})"
    code = f"import sys; sys.path[:] = {sys.path!r}; {order}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def serve(model: str, pace: str | None, settings: Mapping[str, int]) -> None:
    """The front's main: a server as `quire serve` makes it, mostly with another engine."""
    config = load({"port": 0, "drain_seconds": 1, "log_level": "warning", **settings}, {})
    launcher = EngineLauncher() if pace is None else EngineLauncher(pace, ENTRY)
    residency = LocalResidency([ModelEntry("m", lambda: Path(model))], config, launcher, lambda loading: None)
    service = Service(config, Models(residency, config), all_dialects())
    Serving(service, lambda url: print(url, flush=True)).run_until_signal()


class _Client(asyncio.Protocol):
    """One stream. It counts events, and looks for the end alone."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self._request = request
        self._done = done
        self.num_events = 0
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.began:
            self.began = time.perf_counter()
        self.num_events += data.count(b'"content":"')
        if b"[DONE]" in data:
            self._transport.close()
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or EOFError("the stream was cut off"))


async def _clients(url: str, num_streams: int, num_tokens: int) -> tuple[float, float, int]:
    """When the first token came, when the last, and the number of events with text."""
    where, loop = urlsplit(url), asyncio.get_running_loop()
    asked = {
        "model": "m",
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": num_tokens,
        "stream": True,
    }
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    clients = [_Client(head + body, loop.create_future()) for _ in range(num_streams)]
    for client in clients:
        await loop.create_connection(partial(_itself, client), where.hostname or "", where.port or 0)
    await asyncio.gather(*(client._done for client in clients))
    return min(client.began for client in clients), time.perf_counter(), sum(client.num_events for client in clients)


def _itself(client: _Client) -> _Client:
    return client


def _processor_seconds(pid: int) -> float:
    """Of a process, all threads, as Linux counts it; 0 elsewhere."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
