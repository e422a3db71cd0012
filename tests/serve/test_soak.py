"""2,000 requests of every kind, good and bad, against a server of its own process: nothing grows, nothing is left."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.processes.test_process import Server, children, serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_REQUESTS = 2000
NUM_AT_ONCE = 32
SETTINGS = ("--port", "0", "--num-blocks", "256", "--max-context", "1024", "--max-rows", "16")
DEBUG = ("--log-level", "debug")  # whenever its engine is idle, it proves its invariants
WORDS = "the sea was calm and a small boat went out to look for fish while two foxes slept".split()  # noqa: SIM905
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
MAX_GROWTH = 0.03  # of a process, from the second quarter of the requests to the fourth
MAX_GROWTH_MB = 4.0  # what a small process may have besides
MOST = {"front": 0.5, "engine": 1.0}  # growth since the start, as a share of that, beside the engine's KV cache


class Kind:
    """A way to ask: where, what, and which statuses are right."""

    def __init__(self, path: str, body: Any, right: tuple[int, ...] = (200,), leaves: bool = False) -> None:
        self.path = path
        self.body = body
        self.right = right
        self.leaves = leaves  # in the middle of the answer


def kinds(chance: random.Random, model: str) -> Iterator[Kind]:
    """Endless, and always the same."""
    while True:
        text = " ".join(chance.choices(WORDS, k=chance.choice((1, 5, 20, 80, 200))))
        said = {"model": model, "max_tokens": chance.choice((1, 4, 12, 24)), "stream": chance.random() < 0.6}
        chat = said | {"messages": [{"role": "user", "content": text}]}
        yield chance.choice(
            [
                Kind("/v1/completions", said | {"prompt": text, "temperature": 0}),
                Kind("/v1/completions", said | {"prompt": [text, "One"], "n": 2, "seed": 1, "logprobs": 2}),
                Kind("/v1/completions", said | {"prompt": text, "stream": True, "max_tokens": 300}, leaves=True),
                Kind("/v1/chat/completions", chat | {"temperature": 0.7, "stop": ["fish"]}),
                Kind("/v1/chat/completions", chat | {"response_format": _form(), "max_tokens": 24}),
                Kind("/v1/chat/completions", chat | {"stream": True, "max_tokens": 300, "n": 3}, leaves=True),
                Kind("/v1/messages", chat),
                Kind("/api/chat", {"model": model, "messages": chat["messages"], "options": {"num_predict": 4}}),
                Kind("/v1/completions", said | {"prompt": text, "timeout": 0.05, "max_tokens": 200}, (200, 504)),
                Kind("/v1/completions", said | {"prompt": "word " * 3000}, (400,)),
                Kind("/v1/completions", said | {"prompt": text, "temperature": -1}, (400,)),
                Kind("/v1/completions", said | {"prompt": text, "model": "nobody"}, (404,)),
                Kind("/v1/chat/completions", b'{"messages": [', (400,)),
                Kind("/v1/nowhere", {}, (404,)),
                Kind("/tokenize", {"model": model, "prompt": text}),
            ]
        )


def _form() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


class Memory:
    """What the processes of a server hold, in MB, looked at as requests end."""

    def __init__(self, server: Server) -> None:
        self._pids = {"front": server.process.pid, "engine": next(iter(children(server.process.pid)))}
        self.samples: list[dict[str, float]] = []

    def look(self) -> None:
        self.samples.append({name: _resident_mb(pid) for name, pid in self._pids.items()})

    def quarter(self, name: str, which: int) -> float:
        size = len(self.samples) // 4
        return statistics.median(each[name] for each in self.samples[which * size : (which + 1) * size])


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def soak(server: Server, memory: Memory) -> Counter[tuple[str, int]]:
    """Ask all of it. The answers are what they should be."""
    outcomes: Counter[tuple[str, int]] = Counter()
    asks = kinds(random.Random(7), server.model)
    left = iter(range(NUM_REQUESTS))

    async def one(http: httpx.AsyncClient, kind: Kind) -> int:
        content = {"content": kind.body} if isinstance(kind.body, bytes) else {"json": kind.body}
        async with http.stream("POST", kind.path, **content) as response:
            if kind.leaves:
                async for _ in response.aiter_bytes():
                    break
            else:
                await response.aread()
            return response.status_code

    async def worker(http: httpx.AsyncClient) -> None:
        for number in left:
            kind = next(asks)
            status = await one(http, kind)
            assert status in kind.right, (kind.path, kind.body, status)
            outcomes[kind.path, status] += 1
            if number % 10 == 0:
                memory.look()

    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as http:
        await asyncio.gather(*(worker(http) for _ in range(NUM_AT_ONCE)))
    return outcomes


def test_nothing_grows_and_nothing_is_left(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(model_file, *SETTINGS, *DEBUG) as server:
        memory = Memory(server)
        memory.look()
        ready = server.get("/props").json()["models"][server.model]
        kv_mb = ready["num_blocks"] * ready["block_bytes"] / 1e6
        outcomes = asyncio.run(soak(server, memory))
        assert outcomes.total() == NUM_REQUESTS
        text = server.get("/metrics").text
        gauges = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if line.startswith("quire")}
        assert gauges["quire_requests_running"] == gauges["quire_requests_waiting"] == 0
        assert gauges["quire_engine_restarts_total"] == 0, "the engine's invariants held"
        blocks = {
            state: float(line.split()[-1])
            for state in ("free", "held", "cached")
            for line in text.splitlines()
            if line.startswith("quire_kv_blocks{") and f'state="{state}"' in line
        }
        assert blocks["held"] == 0 and blocks["free"] + blocks["cached"] == 256
    figures = {name: [memory.quarter(name, which) for which in range(4)] for name in ("front", "engine")}
    with capsys.disabled():
        print(f"\nMB by quarter: {figures}; {dict(outcomes)}")
    for name, start in memory.samples[0].items():
        assert figures[name][3] - start < MOST[name] * start + (kv_mb if name == "engine" else 0.0), (name, figures)
    for name, (_, second, _, fourth) in figures.items():
        assert fourth - second < MAX_GROWTH * second + MAX_GROWTH_MB, (name, figures)
