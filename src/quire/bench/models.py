"""`quire bench models`: many models in one server. How fast one is reloaded, what sharing costs, and a tight budget.

The server is a child process as `quire serve` runs it, with an engine process for each model. All models are the same
weights in different files, so one model and many are compared under the same closed loop.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget
from quire.bench.engines.model_path import model_path
from quire.bench.engines.quire_server import many_models_server
from quire.bench.figures.figure import Figure, at_most
from quire.bench.figures.table import figure_table
from quire.bench.load.closed_loop import PromptSet, closed_loop
from quire.bench.load.summary import Summary
from quire.bench.machine.description import describe_machine
from quire.bench.machine.processes import process_tree, processor_seconds, resident_bytes
from quire.config import load
from quire.devices.facts import device_facts, host_device
from quire.engine.need import need_of

NUM_MODELS = 8
NUM_CLIENTS, NUM_PROMPTS = 32, 96
PROMPT_TOKENS, MAX_TOKENS = 64, 32
FIRST_TOKEN_ID = 100
CONTEXT = 2048
NUM_RELOADS = 5
NUM_FITTING = 3.0  # models that fit the tight memory budget
IDLE_SECONDS = 2.0
SAMPLE_SECONDS = 0.05


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    print(describe_machine())
    print(figure_table(model_figures(options.model)))


def model_figures(model: str) -> list[Figure]:
    """Measure reloads, sharing and a tight memory budget."""
    path = model_path(model)
    need = need_of(path, load({"max_context": CONTEXT}), device_facts(host_device()))
    size = need.bytes_for(CONTEXT)
    ample_budget = NUM_MODELS * need.bytes_for(CONTEXT, 9)  # no model is short of KV memory
    with _start(path, ample_budget) as server:
        return [*_reload_figures(server), *_sharing_figures(server), *_budget_figures(path, size)]


class ModelServer:
    """A client of the server in the child process."""

    def __init__(self, process: int, url: str) -> None:
        self.process = process
        self._url = url
        self._prompt_starts = count(FIRST_TOKEN_ID)  # no two prompts begin with the same token

    @property
    def engine_processes(self) -> list[int]:
        """The processes of the engines."""
        return process_tree(self.process)[1:]

    def run_load(self, num_models: int) -> Summary:
        """Run the closed loop, with the models in turn."""
        starts = [next(self._prompt_starts) for _ in range(NUM_PROMPTS)]
        prompts = [range(start, start + PROMPT_TOKENS) for start in starts]
        fields = [{"model": f"m{number}", "return_token_ids": True} for number in range(num_models)]

        async def run() -> Summary:
            client = HttpEngineClient(HttpTarget(self._url, "m0"))
            try:
                return await closed_loop(client, PromptSet(prompts, NUM_CLIENTS, MAX_TOKENS, fields))
            finally:
                client.close()

        return asyncio.run(run())

    def call(self, path: str, **body: Any) -> Any:
        """Send a POST request with this body, or a GET request without one. Return the decoded answer."""
        with httpx.Client(base_url=self._url, timeout=600, trust_env=False) as http:
            return (http.post(path, json=body) if body else http.get(path)).raise_for_status().json()


@contextmanager
def _start(path: Path, memory_budget: float) -> Iterator[ModelServer]:
    with many_models_server(path, NUM_MODELS, memory_budget, CONTEXT) as (process, url):
        yield ModelServer(process, url)


def _reload_figures(server: ModelServer) -> list[Figure]:
    seconds = []
    for _ in range(NUM_RELOADS):
        server.call("/api/generate", model="m0", keep_alive=0, stream=False)
        began = time.perf_counter()
        server.call("/api/generate", model="m0", stream=False)
        seconds.append(time.perf_counter() - began)
    note = f"median of {NUM_RELOADS}; slowest {max(seconds):.2f} s"
    return [Figure("reload of an unloaded model", statistics.median(seconds), "s", at_most(1.0), note)]


def _sharing_figures(server: ModelServer) -> list[Figure]:
    server.run_load(NUM_MODELS)  # warm-up
    idle_share = _idle_share(server)
    figures, single_rate = [], 0.0
    for num_models in (1, 2, 4, NUM_MODELS):
        summary = server.run_load(num_models)
        single_rate = single_rate or summary.output_per_second
        first, ratio = summary.first_token, summary.output_per_second / single_rate
        note = f"first token {first.p50 * 1e3:.0f} ms, p99 {first.p99 * 1e3:.0f} ms; {ratio:.2f} of one model's"
        name = f"{NUM_CLIENTS} clients over {num_models} models"
        figures.append(Figure(name, summary.output_per_second, "tok/s", None, note))
    return [*figures, Figure("processors used by eight idle engines", idle_share, "cores", at_most(0.02))]


def _idle_share(server: ModelServer) -> float:
    """Return the cores that idle engines use."""
    before = _processor_seconds(server.engine_processes)
    time.sleep(IDLE_SECONDS)
    return (_processor_seconds(server.engine_processes) - before) / IDLE_SECONDS


def _budget_figures(path: Path, size: int) -> list[Figure]:
    budget = int(NUM_FITTING * size) + (1 << 20)
    with _start(path, budget) as server:
        sizes: list[int] = []
        has_ended = threading.Event()
        sampler = threading.Thread(target=_sample_memory, args=(server, sizes, has_ended))
        sampler.start()
        try:
            summary = server.run_load(NUM_MODELS)
        finally:
            has_ended.set()
            sampler.join()
        memory = server.call("/props")["memory"]
    first = f"first token {summary.first_token.p50:.1f} s, p99 {summary.first_token.p99:.1f} s"
    note = f"{NUM_PROMPTS} answers; {memory['num_loads']} loads, {memory['num_unloads']} unloads; {first}"
    peak = max(sizes) / 1e6
    return [
        Figure("8 models in a memory budget for 3", summary.output_per_second, "tok/s", None, note),
        Figure("peak memory of their engines", peak, "MB", at_most(budget / 1e6), f"{len(sizes)} samples"),
    ]


def _sample_memory(server: ModelServer, sizes: list[int], has_ended: threading.Event) -> None:
    """Sample the memory of all engines; pages that they share are counted once."""
    while not has_ended.wait(SAMPLE_SECONDS):
        sizes.append(sum(resident_bytes(process) or 0 for process in server.engine_processes))


def _processor_seconds(processes: list[int]) -> float:
    return sum(processor_seconds(process) or 0.0 for process in processes)
