"""`quire bench serve` and `quire bench compare`: measure engines one after the other with the same plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget, probe_server
from quire.bench.engines.server_process import start_server
from quire.bench.engines.under_test import EngineUnderTest
from quire.bench.figures.results import BenchmarkResults, EngineResult
from quire.bench.load.load_test import LoadTest, Plan, ProgressView
from quire.types.errors import InvalidRequest, QuireError


async def measure_engines(
    engines: Sequence[EngineUnderTest], plan: Plan, target: HttpTarget, folder: Path, view: ProgressView
) -> BenchmarkResults:
    """Measure all engines. One that fails is reported and left out, unless it is the only one or all fail."""
    load_before, results = os.getloadavg()[0], []
    for engine in engines:
        try:
            results.append(await measure_engine(engine, plan, target, folder, view))
        except QuireError as error:
            if len(engines) == 1:
                raise
            view.say(f"{engine.name}: {error.public}")
    if not results:
        raise InvalidRequest("None of the engines could be measured.", field="engine")
    return BenchmarkResults.of(plan, results, load_before)


async def measure_engine(
    engine: EngineUnderTest, plan: Plan, target: HttpTarget, folder: Path, view: ProgressView
) -> EngineResult:
    """Measure one engine, starting it first if it is a command. Its log goes to the folder."""
    target = replace(target, url=engine.url, model=engine.model or target.model)
    if not engine.command:
        return await _measure_server(engine, target, plan, view)
    folder.mkdir(parents=True, exist_ok=True)
    view.say(f"{engine.name}: starting {engine.command}")
    async with start_server(engine.command, target, folder / f"{engine.name}.log") as server:
        view.say(f"{engine.name}: the first token came after {server.start_seconds:.2f} s")
        result = await _measure_server(engine, server.target, plan, view, server.process)
        return replace(result, start_seconds=server.start_seconds)


async def _measure_server(
    engine: EngineUnderTest, target: HttpTarget, plan: Plan, view: ProgressView, process: int | None = None
) -> EngineResult:
    target, notes = await probe_server(target)
    client = HttpEngineClient(target)
    try:
        points = await LoadTest(engine.name, client, plan, view, process).run()
    finally:
        client.close()
    return EngineResult(engine.name, engine.source, target.model, tuple(points), notes=tuple(notes))
