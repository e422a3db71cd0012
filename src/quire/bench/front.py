"""`quire bench front`: how many tokens one front process streams, and how much of the engine's speed clients get.

Streaming rate: HTTP clients on one side, an engine that answers at once on the other, in three processes. This one has
the clients, raw sockets that only count; the front is a server in a child; the engine is a child of that. "at once"
runs the engine without a limit, so tokens that pile up are merged into one event. "paced" runs one step of all streams
at a fixed rate, so every token should be its own event; the front's CPU time for a token is measured there.

Share of the engine's speed: the same prompts through `LLM.generate` in a child, and over HTTP, alternately. Front,
engine and clients share the cores, so what front and clients use is lost to the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.http_client import HttpEngineClient, HttpTarget
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.engines.quire_server import one_model_server
from quire.bench.figures.figure import Figure, at_least, at_least_times, at_most
from quire.bench.figures.table import figure_table
from quire.bench.load.closed_loop import PromptSet, closed_loop
from quire.bench.load.session import TokenIds
from quire.bench.load.stream_loads import OUTPUT_TOKENS, OWN_TOKENS
from quire.bench.load.summary import Summary
from quire.bench.machine.description import describe_machine
from quire.bench.machine.processes import processor_seconds
from quire.engine.llm import LLM
from quire.types.request import SamplingParams

NUM_FRONT_STREAMS = 256
PACE = 16_000.0  # tokens a second
OFFLINE = "LLM.generate"  # what the engine's share is measured against
NUM_STREAMS, NUM_REQUESTS, NUM_TURNS = 32, 64, 3  # of the share of the engine's speed
SETTINGS: dict[str, Any] = {
    "max_context": 256,
    "num_blocks": 1024,
    "max_rows": NUM_STREAMS,
    "sampling_defaults": "none",
}


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    print(describe_machine())
    path = model_path(options.model)
    print(figure_table([*streaming_figures(str(path)), engine_share(path)]))


@dataclass(frozen=True, slots=True)
class FrontRates:
    """One run of the front with the instant engine."""

    tokens_per_second: float
    events_per_token: float
    front_seconds_per_token: float  # CPU time


def streaming_figures(model: str) -> list[Figure]:
    """Measure the front at once and paced."""
    at_once, paced = measure_front(model, "inf", 512), measure_front(model, str(PACE), 256)
    streams = f"{NUM_FRONT_STREAMS} streams"
    return [
        Figure(f"at once, {streams}", at_once.tokens_per_second, "tok/s", at_least(15_000), _note(at_once)),
        Figure(f"paced at {PACE:,.0f} tok/s, {streams}", paced.tokens_per_second, "tok/s", note=_note(paced)),
        Figure("processor time of the front for a token", paced.front_seconds_per_token * 1e6, "µs", at_most(60.0)),
    ]


def _note(rates: FrontRates) -> str:
    micros = rates.front_seconds_per_token * 1e6
    return f"{rates.events_per_token:.2f} events a token, {micros:.0f} µs of the front's processor"


def measure_front(model: str, pace: str, num_tokens: int) -> FrontRates:
    """Stream this many tokens to each client. The pace is in tokens a second of all streams together, or "inf"."""
    with one_model_server(model, pace) as (process, url):
        asyncio.run(run_clients(url, 8, 16))  # warm-up
        before = processor_seconds(process) or 0.0
        began, ended, num_events = asyncio.run(run_clients(url, NUM_FRONT_STREAMS, num_tokens))
        used = (processor_seconds(process) or 0.0) - before
    total = NUM_FRONT_STREAMS * num_tokens
    return FrontRates(total / (ended - began), num_events / total, used / total)


class _CountingClient(asyncio.Protocol):
    """One stream. It counts events, and parses nothing but the end."""

    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self._request = request
        self.done = done
        self.num_events = 0
        self.first_data = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.first_data:
            self.first_data = time.perf_counter()
        self.num_events += data.count(b'"content":"')
        if b"[DONE]" in data:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or EOFError("the stream was cut off"))


async def run_clients(url: str, num_streams: int, num_tokens: int) -> tuple[float, float, int]:
    """Return the time of the first token, the time of the last, and the number of events with text."""
    address, loop = urlsplit(url), asyncio.get_running_loop()
    fields = {
        "model": "m",
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": num_tokens,
        "stream": True,
    }
    body = json.dumps(fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    clients = [_CountingClient(head + body, loop.create_future()) for _ in range(num_streams)]
    for client in clients:
        await loop.create_connection(partial(_identity, client), address.hostname or "", address.port or 0)
    await asyncio.gather(*(client.done for client in clients))
    first_data = min(client.first_data for client in clients)
    return first_data, time.perf_counter(), sum(client.num_events for client in clients)


def _identity(client: _CountingClient) -> _CountingClient:
    return client


def engine_share(model: Path) -> Figure:
    """Measure the engine offline and over HTTP, alternately; compare the medians."""
    rng, words = random.Random(0), ModelFacts.of(model).words
    prompts = tuple(tuple(rng.choices(words, k=OWN_TOKENS)) for _ in range(NUM_REQUESTS))
    offline, served = [], []
    for _ in range(NUM_TURNS):
        offline.append(run_in_child(offline_rate, float, str(model), prompts)[0])
        with one_model_server(str(model), None, **SETTINGS) as (_, url):
            served.append(asyncio.run(measure_over_http(url, prompts)).output_per_second)
    name, note = f"{NUM_STREAMS} streams over HTTP", f"{OWN_TOKENS} tokens in, {OUTPUT_TOKENS} out"
    goal, peers = at_least_times(0.9, OFFLINE), {OFFLINE: median(offline)}
    return Figure(name, median(served), "tok/s", goal, note, peers)


def offline_rate(model: str, prompts: tuple[tuple[int, ...], ...]) -> float:
    """Return output tokens a second of LLM.generate."""
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    with LLM(model, **SETTINGS) as llm:
        llm.generate(prompts[0], sampling)  # warm-up
        began = time.perf_counter()
        answers = llm.generate(prompts, sampling, progress=False)
        return sum(len(answer.tokens) for answer in answers) / (time.perf_counter() - began)


async def measure_over_http(url: str, prompts: tuple[TokenIds, ...]) -> Summary:
    """Send the prompts to a server with NUM_STREAMS clients, after a warm-up with the first."""
    client = HttpEngineClient(HttpTarget(url, "m"))
    try:
        await closed_loop(client, PromptSet(prompts[:1], 1, OUTPUT_TOKENS))
        return await closed_loop(client, PromptSet(prompts, NUM_STREAMS, OUTPUT_TOKENS))
    finally:
        client.close()
