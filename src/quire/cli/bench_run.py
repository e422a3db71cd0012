"""What `quire bench` does: options become a plan, the plan is measured, the outcome is told and written."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from quire.bench.compare import measure_engines
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
from quire.bench.page.progress import show_progress
from quire.bench.page.terminal import results_text
from quire.cli.bench_options import (
    DEFAULT_CLIENTS,
    DEFAULT_REQUESTS,
    CompareOptions,
    LoadOptions,
    OfflineOptions,
    ServeOptions,
    ServerOptions,
)
from quire.types.errors import InvalidRequest

DEFAULT_URL = "http://127.0.0.1:8000"


def serve(options: ServeOptions) -> None:
    """One server."""
    url = options.url or ("" if options.start else DEFAULT_URL)
    _say(_compared([EngineUnderTest(options.name, url, options.start)], options), options, options.json)


def compare_engines(options: CompareOptions) -> None:
    """Several."""
    engines = [parse_engine(each) for each in options.engine]
    if not engines or len({engine.name for engine in engines}) < len(engines):
        raise InvalidRequest("Give engines of different names: --engine NAME=URL --engine NAME=URL.", field="engine")
    _say(_compared(engines, options), options, options.json)


def offline(options: OfflineOptions, settings: Mapping[str, str]) -> None:
    """Our engine in this process."""
    plan = plan_of(options)
    module = import_module("quire.bench.offline")  # imported here: measuring a server needs no engine
    with show_progress() as view:
        work = module.measure_in_process(options.model, options.device, settings, plan, view)
        results: BenchmarkResults = run_async(work)
    _say(results, options, options.json)


def _compared(engines: Sequence[EngineUnderTest], options: ServerOptions) -> BenchmarkResults:
    plan, target = plan_of(options), target_of(options)
    with TemporaryDirectory() as nowhere, show_progress() as view:
        return run_async(measure_engines(engines, plan, target, options.folder() or Path(nowhere), view))


def _say(results: BenchmarkResults, options: LoadOptions, as_object: bool) -> None:
    """Files, then words."""
    folder = options.folder()
    if folder is not None:
        files = write_results(results, folder)
        page = folder / "report.html"
        page.write_text(comparison_page(results, shlex.join(["quire", *sys.argv[1:]])), encoding="utf-8")
        typer.echo(f"Wrote {page} and {', '.join(file.name for file in files)}.", err=True)
    typer.echo(json.dumps(results_json(results), indent=1) if as_object else results_text(results))


def plan_of(options: LoadOptions) -> Plan:
    """What is measured. Whatever is wrong with it is said before anything starts."""
    workloads = options.workload or ("unique",)
    lengths = {"input": options.input_len, "output": options.output_len}
    is_recorded = all(each.startswith("trace") for each in workloads)
    plan = Plan(
        workloads=workloads,
        lengths={name: value for name, value in lengths.items() if value},
        loads=_loads(options, is_recorded),
        stop=_stop_after(options, is_recorded),
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
            "A load is closed (--concurrency) or open (--request-rate): give one of them.", field="concurrency"
        )
    if options.request_rate:
        arrivals = (
            ArrivalProcess("gamma", options.burstiness) if options.burstiness else parse_arrivals(options.arrivals)
        )
        return tuple(OpenLoop(rate, arrivals) for rate in _numbers(options.request_rate, "request-rate"))
    if is_recorded and not options.concurrency:
        return (RecordedTimes(),)
    return tuple(ClosedLoop(int(each)) for each in _numbers(options.concurrency or DEFAULT_CLIENTS, "concurrency"))


def _stop_after(options: LoadOptions, is_recorded: bool) -> StopAfter:
    if options.requests or options.duration:
        return StopAfter(options.requests or None, options.duration or None)
    return StopAfter() if is_recorded else StopAfter(DEFAULT_REQUESTS)


def target_of(options: ServerOptions) -> HttpTarget:
    """How servers are asked; where, each engine says."""
    try:
        more = json.loads(options.extra_body or "{}")
    except ValueError as error:
        raise InvalidRequest(f"--extra-body is no JSON: {error}.", field="extra_body") from None
    of = options
    return HttpTarget("", of.model, of.api, of.key, of.temperature, of.ignore_eos, of.timeout, more)


def _numbers(text: str, name: str) -> list[float]:
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise InvalidRequest(f"--{name} {text}: write one number or several, such as 1,8,32.", field=name)
    return found
