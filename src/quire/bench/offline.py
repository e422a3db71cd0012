"""`quire bench offline`: the workloads and figures of `quire bench serve` without a server, to see what HTTP costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from quire.bench.engines.in_process import InProcessClient
from quire.bench.engines.model_path import model_path
from quire.bench.figures.results import BenchmarkResults, EngineResult
from quire.bench.load.load_test import LoadTest, Plan, ProgressView
from quire.bench.machine.clock import clock
from quire.engine.async_llm import AsyncLLM


async def measure_in_process(
    model: str, device: str, settings: Mapping[str, Any], plan: Plan, view: ProgressView
) -> BenchmarkResults:
    """Open the model in this process, with its steps in a thread, and run the plan on it."""
    load_before, began = os.getloadavg()[0], clock()
    async with await AsyncLLM.open(model_path(model), device=device, in_process=True, **settings) as llm:
        seconds = clock() - began
        points = await LoadTest("engine", InProcessClient(llm), plan, view, os.getpid()).run()
    note = f"The model was opened in {seconds:.2f} s. Memory is that of engine and generator together."
    result = EngineResult("engine", f"in this process, on {device}", model, tuple(points), notes=(note,))
    return BenchmarkResults.of(plan, [result], load_before)
