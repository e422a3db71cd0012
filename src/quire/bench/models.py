"""Many models in one server: how fast one comes back, what company costs, and what happens when not all of them fit.

The server is a child, as `quire serve` makes it, and each model an engine below that. All models are the same weights
in files of their own: what is compared is one model against many at the same load. Clients are a closed loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from quire.bench.figure import Figure, at_most
from quire.bench.load import Load, Scenario, TokenIds, closed_loop
from quire.bench.located import located
from quire.bench.machine import machine
from quire.bench.table import table
from quire.config import load
from quire.engine.need import need_of
from quire.serve.http.app import all_dialects
from quire.serve.processes.server import Serving
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import ModelEntry
from quire.serve.service import Service

NUM_CLIENTS, NUM_PROMPTS = 32, 96
PROMPT_TOKENS, MAX_TOKENS = 64, 32
CONTEXT = 2048
NUM_RELOADS = 5
FITTING = 3.0  # of eight models
LOOK_SECONDS = 0.05


class Server:
    """One in a child process."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid = pid
        self.url = url
        self._turns, self._prompts = count(), count()
        self._num_models = 1
        self._http = httpx.AsyncClient(base_url=url, timeout=600, trust_env=False)

    def measure(self, num_models: int, num_prompts: int = NUM_PROMPTS) -> Load:
        """The closed loop over so many of its models."""

        async def run() -> Load:
            async with httpx.AsyncClient(base_url=self.url, timeout=600, trust_env=False) as self._http:
                prompts = tuple(tuple(range(first, first + PROMPT_TOKENS)) for first in firsts)
                return await closed_loop(self, Scenario(prompts, NUM_CLIENTS, MAX_TOKENS))

        self._num_models = num_models
        firsts = [100 + next(self._prompts) for _ in range(num_prompts)]  # no two prompts begin alike
        return asyncio.run(run())

    async def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        """The answer of the model whose turn it is."""
        body = {"model": f"m{next(self._turns) % self._num_models}", "prompt": list(prompt), "max_tokens": max_tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        yield choice.get("token_ids") or ()

    def ask(self, path: str, **body: Any) -> Any:
        """One question."""
        with httpx.Client(base_url=self.url, timeout=600, trust_env=False) as http:
            return (http.post(path, json=body) if body else http.get(path)).raise_for_status().json()


def main(asked: argparse.Namespace) -> None:
    """Print the table."""
    print(machine())
    print(table(run(asked.model)))


def run(model: str) -> list[Figure]:
    """All figures."""
    path = located(model)
    size = need_of(path, load({"max_context": CONTEXT})).bytes_for(CONTEXT)
    roomy = 8 * need_of(path, load({"max_context": CONTEXT})).bytes_for(CONTEXT, 9)  # no model is short of KV memory
    with _server(path, 8, roomy) as server:
        return [*_reloads(server), *_company(server), *_budget(path, size)]


def _reloads(server: Server) -> list[Figure]:
    seconds = []
    for _ in range(NUM_RELOADS):
        server.ask("/api/generate", model="m0", keep_alive=0, stream=False)
        began = time.perf_counter()
        server.ask("/api/generate", model="m0", stream=False)
        seconds.append(time.perf_counter() - began)
    note = f"median of {NUM_RELOADS}; slowest {max(seconds):.2f} s"
    return [Figure("a model that was unloaded is loaded again", statistics.median(seconds), "s", at_most(1.0), note)]


def _company(server: Server) -> list[Figure]:
    server.measure(8)  # warm
    figures, alone = [], 0.0
    idle = _processor_seconds(server.pid)
    time.sleep(2.0)
    idle = (_processor_seconds(server.pid) - idle) / 2.0
    for num_models in (1, 2, 4, 8):
        seen = server.measure(num_models)
        alone = alone or seen.tokens_per_second
        first, share = seen.first_token, seen.tokens_per_second / alone
        note = f"first token {first.p50 * 1e3:.0f} ms, p99 {first.p99 * 1e3:.0f} ms; {share:.2f} of one model's"
        name = f"{NUM_CLIENTS} clients over {num_models} models"
        figures.append(Figure(name, seen.tokens_per_second, "tok/s", None, note))
    return [*figures, Figure("processors that eight idle engines use", idle, "cores", at_most(0.02))]


def _budget(path: Path, size: int) -> list[Figure]:
    budget = int(FITTING * size) + (1 << 20)
    with _server(path, 8, budget) as server:
        sizes: list[int] = []
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(server.pid, sizes, ended))
        watch.start()
        try:
            seen = server.measure(8)
        finally:
            ended.set()
            watch.join()
        told = server.ask("/props")["memory"]
    first = f"first token {seen.first_token.p50:.1f} s, p99 {seen.first_token.p99:.1f} s"
    what = f"{NUM_PROMPTS} answers; {told['num_loads']} loads, {told['num_unloads']} unloads; {first}"
    most = max(sizes) / 1e6
    return [
        Figure("8 models in room for 3", seen.tokens_per_second, "tok/s", None, what),
        Figure("most memory that their engines took", most, "MB", at_most(budget / 1e6), f"{len(sizes)} looks"),
    ]


@contextmanager
def _server(path: Path, num_models: int, budget: float) -> Iterator[Server]:
    main = f"from quire.bench.models import serve; serve({str(path)!r}, {num_models}, {budget})"
    code = f"import sys; sys.path[:] = {sys.path!r}; {main}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Server(process.pid, process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def serve(path: str, num_models: int, budget: float) -> None:
    """The child's main."""
    flags = {"port": 0, "drain_seconds": 1, "log_level": "warning", "max_context": CONTEXT, "load_patience": 600.0}
    config = load(flags | {"memory_budget": budget / 1e9})
    with tempfile.TemporaryDirectory(prefix="quire-", dir=Path(path).resolve().parent) as folder:
        names = [f"m{number}" for number in range(num_models)]
        copies = {name: _linked(Path(path), Path(folder, name)) for name in names}
        entries = [ModelEntry(name, partial(copies.__getitem__, name)) for name in names]
        models = Models(LocalResidency(entries, config, EngineLauncher(), lambda loading: None), config)
        Serving(Service(config, models, all_dialects()), lambda url: print(url, flush=True)).run_until_signal()


def _linked(path: Path, folder: Path) -> Path:
    """The same model in a folder of its own: names of one file would share an engine."""
    folder.mkdir()
    for file in path.iterdir() if path.is_dir() else [path]:
        (folder / file.name).hardlink_to(file.resolve())
    return folder if path.is_dir() else folder / path.name


def _engines(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _watch(pid: int, sizes: list[int], ended: threading.Event) -> None:
    """What all engines hold, each page of memory that several of them map counted once."""
    while not ended.wait(LOOK_SECONDS):
        sizes.append(sum(resident_bytes(engine) for engine in _engines(pid)))


def resident_bytes(pid: int) -> int:
    """Of one process, with its part of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just gone
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _processor_seconds(pid: int) -> float:
    """Of all its engines."""
    fields = [Path(f"/proc/{engine}/stat").read_text().rpartition(") ")[2].split() for engine in _engines(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / 100
