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

from quire.bench.arrivals import Arrivals, parse_arrivals
from quire.bench.choose import choose
from quire.bench.compare import Engine, compare, parse_engine
from quire.bench.compare_page import compare_page
from quire.bench.drive import Closed, Load, Open, Recorded, Until
from quire.bench.measure import Plan, run
from quire.bench.outcome import Outcome, as_json, write
from quire.bench.over_http import Target
from quire.bench.summary import parse_limits
from quire.bench.terminal import told
from quire.bench.view import shown
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
    _report(_measure([Engine(options.name, url, options.start)], options), options, options.json)


def measure_engines(options: BenchCompareOptions) -> None:
    """Measure several engines."""
    engines = [parse_engine(each) for each in options.engine]
    if not engines or len({engine.name for engine in engines}) < len(engines):
        raise InvalidRequest("Name each engine once: --engine NAME=URL --engine NAME=URL.", field="engine")
    _report(_measure(engines, options), options, options.json)


def measure_local_engine(options: BenchOfflineOptions, settings: Mapping[str, str]) -> None:
    """Measure an engine in this process."""
    plan = plan_of(options)
    in_process = import_module("quire.bench.in_process")  # imported here: it imports the engine
    with shown() as view:
        outcome: Outcome = run(in_process.measure_in_process(options.model, options.device, settings, plan, view))
    _report(outcome, options, options.json)


def _measure(engines: Sequence[Engine], options: HttpLoadOptions) -> Outcome:
    plan, target = plan_of(options), target_of(options)
    with TemporaryDirectory() as discarded, shown() as view:
        return run(compare(engines, plan, target, options.folder() or Path(discarded), view))


def _report(outcome: Outcome, options: LoadOptions, is_json: bool) -> None:
    """Write the files of --out, then print the outcome."""
    folder = options.folder()
    if folder is not None:
        files = write(outcome, folder)
        page = folder / "report.html"
        page.write_text(compare_page(outcome, shlex.join(["quire", *sys.argv[1:]])), encoding="utf-8")
        typer.echo(f"Wrote {page} and {', '.join(file.name for file in files)}.", err=True)
    typer.echo(json.dumps(as_json(outcome), indent=1) if is_json else told(outcome))


def plan_of(options: LoadOptions) -> Plan:
    """Build the plan of a benchmark. Raise on invalid options before anything starts."""
    workloads = options.workload or ("unique",)
    lengths = {"input": options.input_len, "output": options.output_len}
    is_recorded = all(each.startswith("trace") for each in workloads)
    plan = Plan(
        workloads=workloads,
        lengths={name: value for name, value in lengths.items() if value},
        loads=_loads(options, is_recorded),
        until=_until(options, is_recorded),
        num_warm=None if options.warmup < 0 else options.warmup,
        seed=options.seed,
        limits=parse_limits(options.goodput),
        price_per_hour=options.price_per_hour or None,
    )
    for workload in workloads:
        choose(workload, plan.lengths)
    return plan


def _loads(options: LoadOptions, is_recorded: bool) -> tuple[Load, ...]:
    if options.concurrency and options.request_rate:
        raise InvalidRequest(
            "--concurrency (closed loop) and --request-rate (open loop) were both given. Use one of them.",
            field="concurrency",
        )
    if options.request_rate:
        arrivals = Arrivals("gamma", options.burstiness) if options.burstiness else parse_arrivals(options.arrivals)
        return tuple(Open(rate, arrivals) for rate in _numbers(options.request_rate, "request-rate"))
    if is_recorded and not options.concurrency:
        return (Recorded(),)
    return tuple(Closed(int(each)) for each in _numbers(options.concurrency or DEFAULT_CLIENTS, "concurrency"))


def _until(options: LoadOptions, is_recorded: bool) -> Until:
    if options.requests or options.duration:
        return Until(options.requests or None, options.duration or None)
    return Until() if is_recorded else Until(DEFAULT_REQUESTS)


def target_of(options: HttpLoadOptions) -> Target:
    """Return the request parameters common to all engines; each engine has its own URL."""
    try:
        more = json.loads(options.extra_body or "{}")
    except ValueError as error:
        raise InvalidRequest(f"--extra-body is not JSON: {error}.", field="extra_body") from None
    api = (options.model, options.api, options.key)
    return Target("", *api, options.temperature, options.ignore_eos, options.timeout, more)


def _numbers(text: str, name: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0:
        raise InvalidRequest(f"--{name} {text}: use positive numbers separated by commas, such as 1,8,32.", field=name)
    return numbers
