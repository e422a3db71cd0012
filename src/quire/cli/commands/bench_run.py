"""Runs `quire bench`: build a plan from the options, measure it, print and write the outcome."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from quire.bench import compare
from quire.bench.engines.http_client import HttpTarget
from quire.bench.engines.under_test import EngineUnderTest, parse_engine
from quire.bench.figures.result_files import results_json, write_results
from quire.bench.figures.results import BenchmarkResults
from quire.bench.load.arrivals import ArrivalProcess, parse_arrivals
from quire.bench.load.event_loop import run_async
from quire.bench.load.load_test import Plan
from quire.bench.load.patterns import ClosedLoop, LoadPattern, OpenLoop, RecordedTimes, StopAfter
from quire.bench.load.summary import parse_limits
from quire.bench.load.workload_spec import parse_workload
from quire.bench.page.comparison_page import comparison_page
from quire.bench.page.progress import benchmark_progress
from quire.bench.page.terminal import results_text
from quire.cli.commands.bench_options import (
    DEFAULT_CLIENTS,
    DEFAULT_REQUESTS,
    BenchCompareOptions,
    BenchOfflineOptions,
    BenchServeOptions,
    HttpLoadOptions,
    LoadOptions,
)
from quire.types.errors import InvalidRequest

DEFAULT_URL = "http://127.0.0.1:8000"


def measure_server(options: BenchServeOptions) -> None:
    """Measure one server."""
    url = options.url or ("" if options.start else DEFAULT_URL)
    _report(_measure([EngineUnderTest(options.name, url, options.start)], options), options, options.json)


def run_comparison(options: BenchCompareOptions) -> None:
    """Measure several engines."""
    engines = [parse_engine(each) for each in options.engine]
    if not engines or len({engine.name for engine in engines}) < len(engines):
        raise InvalidRequest("Name each engine once: --engine NAME=URL --engine NAME=URL.", field="engine")
    _report(_measure(engines, options), options, options.json)


def measure_local_engine(options: BenchOfflineOptions, settings: Mapping[str, str]) -> None:
    """Measure an engine in this process."""
    plan = plan_of(options)
    in_process = import_module("quire.bench.offline")  # imported here: it imports the engine
    with benchmark_progress() as view:
        outcome: BenchmarkResults = run_async(
            in_process.measure_in_process(options.model, options.device, settings, plan, view)
        )
    _report(outcome, options, options.json)


def _measure(engines: Sequence[EngineUnderTest], options: HttpLoadOptions) -> BenchmarkResults:
    plan, target = plan_of(options), target_of(options)
    with TemporaryDirectory() as discarded, benchmark_progress() as view:
        return run_async(compare.measure_engines(engines, plan, target, options.folder() or Path(discarded), view))


def _report(outcome: BenchmarkResults, options: LoadOptions, is_json: bool) -> None:
    """Write the files of --out, then print the outcome."""
    folder = options.folder()
    if folder is not None:
        files = write_results(outcome, folder)
        page = folder / "report.html"
        page.write_text(comparison_page(outcome, shlex.join(["quire", *sys.argv[1:]])), encoding="utf-8")
        typer.echo(f"Wrote {page} and {', '.join(file.name for file in files)}.", err=True)
    typer.echo(json.dumps(results_json(outcome), indent=1) if is_json else results_text(outcome))


def plan_of(options: LoadOptions) -> Plan:
    """Build the plan of a benchmark. Raise on invalid options before anything starts."""
    workloads = options.workload or ("unique",)
    lengths = {"input": options.input_len, "output": options.output_len}
    is_recorded = all(each.startswith("trace") for each in workloads)
    plan = Plan(
        workloads=workloads,
        lengths={name: value for name, value in lengths.items() if value},
        loads=_loads(options, is_recorded),
        stop=_until(options, is_recorded),
        num_warm_up=None if options.warmup < 0 else options.warmup,
        seed=options.seed,
        limits=parse_limits(options.goodput),
        price_per_hour=options.price_per_hour or None,
    )
    for workload in workloads:
        parse_workload(workload, plan.lengths)
    return plan


def _loads(options: LoadOptions, is_recorded: bool) -> tuple[LoadPattern, ...]:
    if options.concurrency and options.request_rate:
        raise InvalidRequest(
            "--concurrency (closed loop) and --request-rate (open loop) were both given. Use one of them.",
            field="concurrency",
        )
    if options.request_rate:
        arrivals = (
            ArrivalProcess("gamma", options.burstiness) if options.burstiness else parse_arrivals(options.arrivals)
        )
        return tuple(OpenLoop(rate, arrivals) for rate in _numbers(options.request_rate, "request-rate"))
    if is_recorded and not options.concurrency:
        return (RecordedTimes(),)
    return tuple(ClosedLoop(int(each)) for each in _numbers(options.concurrency or DEFAULT_CLIENTS, "concurrency"))


def _until(options: LoadOptions, is_recorded: bool) -> StopAfter:
    if options.requests or options.duration:
        return StopAfter(options.requests or None, options.duration or None)
    return StopAfter() if is_recorded else StopAfter(DEFAULT_REQUESTS)


def target_of(options: HttpLoadOptions) -> HttpTarget:
    """Return the request parameters common to all engines; each engine has its own URL."""
    try:
        more = json.loads(options.extra_body or "{}")
    except ValueError as error:
        raise InvalidRequest(f"--extra-body is not JSON: {error}.", field="extra_body") from None
    api = (options.model, options.api, options.key)
    return HttpTarget("", *api, options.temperature, options.ignore_eos, options.timeout, more)


def _numbers(text: str, name: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0:
        raise InvalidRequest(f"--{name} {text}: use positive numbers separated by commas, such as 1,8,32.", field=name)
    return numbers
