"""Run all loads of a plan against one engine.

Every load has its own prompts, so one load's cached prefixes do not help the next. The warm-up before each load uses
other prompts again and is not counted. All prompts follow from the seed: every engine gets the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from quire.bench.load.patterns import ClosedLoop, LoadPattern, StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.load.run_load import EngineClient, run_load
from quire.bench.load.session import Session, SessionSource
from quire.bench.load.summary import LatencyLimits, Percentiles, RunConditions, Summary, summarize
from quire.bench.load.workload_spec import parse_workload
from quire.bench.machine.generator_delay import measure_generator_delay
from quire.bench.machine.memory import watch_memory

MAX_WARM_UP = 16  # requests, where the plan sets no number
TRACE_WARM_UP = "unique:input=32,output=8"  # a recorded trace is not sent twice


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, the same for every engine."""

    workloads: tuple[str, ...] = ("unique",)  # as `parse_workload` reads them
    lengths: dict[str, str] = field(default_factory=dict)
    loads: tuple[LoadPattern, ...] = (ClosedLoop(1),)
    stop: StopAfter = field(default_factory=lambda: StopAfter(num_requests=64))
    num_warm_up: int | None = None
    seed: int = 0
    limits: LatencyLimits | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One load of one workload: its figures, and the results that they are computed from."""

    workload: str
    load: LoadPattern
    summary: Summary
    results: tuple[RequestResult, ...]


class ProgressView(Protocol):
    """Shows the progress of a benchmark."""

    def begin_load(self, title: str, stop: StopAfter, is_warm_up: bool) -> None:
        """Show that a load has begun."""
        ...

    def add_result(self, result: RequestResult) -> None:
        """Count a request that has ended."""
        ...

    def finish_load(self, engine: str, point: Point) -> None:
        """Show the figures of a load."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...


@dataclass(frozen=True, slots=True)
class LoadTest:
    """One engine, the plan, and the view that shows progress."""

    engine: str
    client: EngineClient
    plan: Plan
    view: ProgressView
    process: int | None = None  # of the server: its memory is sampled. None: unknown

    async def run(self) -> list[Point]:
        """Measure every workload under every load."""
        points = []
        for workload in self.plan.workloads:
            for index, load in enumerate(self.plan.loads):
                points.append(await self._measure(workload, load, f"{self.plan.seed} {workload} {index}"))
                self.view.finish_load(self.engine, points[-1])
        return points

    async def _measure(self, workload: str, load: LoadPattern, seed: str) -> Point:
        plan, source = self.plan, parse_workload(workload, self.plan.lengths)
        async with measure_generator_delay() as delay, watch_memory(self.process) as memory:
            await self._warm_up(workload, load, f"warm {seed}")
            self.view.begin_load(f"{self.engine}, {workload}, {load}", plan.stop, False)
            delay.restart()
            results = await run_load(self.client, _sessions(source, seed), load, plan.stop, self.view.add_result)
            runs_engine = self.process == os.getpid()  # then the CPU time is mostly the engine's
            processor_share = 0.0 if runs_engine else delay.processor_share
        conditions = RunConditions(
            Percentiles.of(delay.delays), processor_share, memory.memory_bytes, memory.gpu_bytes, plan.price_per_hour
        )
        return Point(workload, load, summarize(str(load), results, plan.limits, conditions), tuple(results))

    async def _warm_up(self, workload: str, load: LoadPattern, seed: str) -> None:
        num_clients = load.num_clients if isinstance(load, ClosedLoop) else MAX_WARM_UP
        num_warm_up = self.plan.num_warm_up
        stop = StopAfter(min(num_clients, MAX_WARM_UP) if num_warm_up is None else num_warm_up)
        source = parse_workload(TRACE_WARM_UP if workload.startswith("trace") else workload, self.plan.lengths)
        self.view.begin_load(f"{self.engine}, {workload}, {load}", stop, True)
        await run_load(self.client, _sessions(source, seed), ClosedLoop(num_clients), stop, self.view.add_result)


def _sessions(source: SessionSource, seed: str) -> Iterator[Session]:
    return source.sessions(random.Random(seed))
