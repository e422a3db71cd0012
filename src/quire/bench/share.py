"""How much of the engine's speed a server's clients get: the same prompts offline, and over HTTP, in turn.

Offline is `LLM.generate` in a process of its own. The server is one front and its engine, and the clients, which only
count, are in a third process. All share the same cores: what front and clients take, the engine does not have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from quire.bench.child import run_part
from quire.bench.facts import ModelFacts
from quire.bench.figure import Figure, at_least_times
from quire.bench.front import front
from quire.bench.front import run as front_figures
from quire.bench.load import Scenario, TokenIds, closed_loop
from quire.bench.located import located
from quire.bench.machine import machine
from quire.bench.streams import OUT, OWN
from quire.bench.table import table
from quire.engine.llm import LLM
from quire.types.request import SamplingParams

NUM_STREAMS = 32
NUM_REQUESTS = 64
NUM_TURNS = 3
SETTINGS: dict[str, Any] = {
    "max_context": 256,
    "num_blocks": 1024,
    "max_rows": NUM_STREAMS,
    "sampling_defaults": "none",
}
UNNAMED = -1  # a token of which only the number is told
COUNTED = re.compile(rb'"completion_tokens":(\d+)')


def main(asked: argparse.Namespace) -> None:
    """The part `front`: what one front process can do, and how much of the engine's speed comes through it."""
    print(machine())
    path = located(asked.model)
    print(table([*front_figures(str(path)), share(path)]))


def share(model: Path) -> Figure:
    """The middle one of several turns of each."""
    chance, words = random.Random(0), ModelFacts.of(model).words
    prompts = tuple(tuple(chance.choices(words, k=OWN)) for _ in range(NUM_REQUESTS))
    alone, served = [], []
    for _ in range(NUM_TURNS):
        alone.append(run_part(offline, float, str(model), prompts)[0])
        with front(str(model), None, **SETTINGS) as (_, url):
            served.append(asyncio.run(_over_http(url, prompts)))
    note = f"{OWN} tokens in, {OUT} out; the peer is LLM.generate"
    return Figure(f"{NUM_STREAMS} streams over HTTP", median(served), "tok/s", at_least_times(0.9), note, median(alone))


def offline(model: str, prompts: tuple[tuple[int, ...], ...]) -> float:
    """Tokens a second."""
    sampling = SamplingParams(max_tokens=OUT, temperature=0.0, ignore_eos=True)
    with LLM(model, **SETTINGS) as llm:
        llm.generate(prompts[0], sampling)  # whatever is done once, is done
        began = time.perf_counter()
        answers = llm.generate(prompts, sampling, progress=False)
        return sum(len(answer.tokens) for answer in answers) / (time.perf_counter() - began)


async def _over_http(url: str, prompts: tuple[TokenIds, ...]) -> float:
    server = OverHttp(url)
    await closed_loop(server, Scenario(prompts[:1], 1, OUT))
    return (await closed_loop(server, Scenario(prompts, NUM_STREAMS, OUT))).tokens_per_second


class OverHttp:
    """A server as a load sees it, by the cheapest client that there is."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port or 0

    async def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        """An event is at least one token; how many there were, the usage says at the end."""
        asked = {"model": "m", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps(asked | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(head.encode() + body)
            num_sent_blocks, last = 0, b""
            while data := await reader.read(1 << 16):
                num_events = data.count(b'"finish_reason":null')
                num_sent_blocks, last = num_sent_blocks + num_events, last[-1000:] + data
                yield [UNNAMED] * num_events
        finally:
            writer.close()
        found = COUNTED.search(last)
        yield [UNNAMED] * (int(found[1]) - num_sent_blocks if found else 0)
