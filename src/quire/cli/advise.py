"""`quire advise`: what to run for the requests of a trace, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from quire.cli.options import Given, Shown, argument, command, option
from quire.types.errors import InvalidRequest

EXAMPLES = (
    "quire advise trace.jsonl",
    "quire advise trace.jsonl --model smollm2:135m --on laptop --html advice.html",
    "quire advise --url http://127.0.0.1:8000 --json",
)


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """Of which requests, for which model, on what."""

    trace: str = argument(
        "",
        "Requests, one a line: OpenAI bodies with times, a batch file, the request log of Quire or vLLM. "
        "Default: those of the server at --url.",
    )
    url: str = option("", "A running Quire that keeps a request log (--request-log): its requests are taken.")
    model: str = option("", "Model to plan for: a name or a path, as quire run takes it, or llama-3.1-8b and the like.")
    on: str = option("here", "Where it is to run: here (this machine), laptop, l4, rtx4090, a100, h100 or h200.")
    precision: str = option("", "Weights to plan for, such as bf16, fp8, q8_0 or q4_k. Default: as the model has them.")
    compare: str = option("", "Folder that `quire bench compare` wrote: the answer argues from its figures.")
    html: str = option("", "Write the whole report into this file, too.")
    json: bool = option(False, "Print one JSON object.", "--json")


@command(AdviseOptions, "cache", "scheduler", "store", names=("api_key",), shown=Shown(EXAMPLES))
def advise(options: AdviseOptions, given: Given) -> None:
    """Read a trace of requests, simulate it, and say which engine and settings to run."""
    if bool(options.trace) == bool(options.url):
        raise InvalidRequest("Give a file of requests, or --url of a Quire that keeps a request log.", field="trace")
    planning = import_module("quire.advisor.planning")  # here: no other command waits for a simulation
    with _said(sys.stderr.isatty() and not options.json) as say:
        say("reading the trace")
        trace, server = _trace(options, given)
        wanted = planning.Wanted(options.model, options.on, options.precision, _folder(options.compare), options.trace)
        advice = planning.advise_on(trace, wanted, given.config, given.store, server, say)
    if options.html:
        Path(options.html).write_text(import_module("quire.advisor.pages").document(advice), encoding="utf-8")
    if options.json:
        typer.echo(json.dumps(import_module("quire.advisor.told").as_json(advice), indent=1))
        return
    console = import_module("rich.console").Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    import_module("quire.advisor.terminal").show(advice, console)
    if options.html:
        typer.echo(f"\nThe whole report is in {options.html}.")


def _folder(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _trace(options: AdviseOptions, given: Given) -> tuple[Any, Any]:
    """The requests, and what their server says of itself if it is one that runs."""
    traces = import_module("quire.report.trace")
    if options.trace:
        return traces.read_trace(Path(options.trace).expanduser()), None
    asked = import_module("quire.cli.server").Server(options.url, given.config.serve.api_key)
    with closing(asked):
        lines = asked.text("/v1/requests").splitlines()
        if not lines:
            raise InvalidRequest(f"The request log of {options.url} is empty: nothing was asked yet.", field="url")
        return traces.parse_trace(lines, options.url), asked.get("/props")


@contextmanager
def _said(is_shown: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on a line of the terminal that goes away afterwards."""

    def say(text: str) -> None:
        if is_shown:
            print(f"\r\x1b[K{text}{' …' if text else ''}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")
