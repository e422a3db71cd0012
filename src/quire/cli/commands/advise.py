"""`quire advise`: recommend an engine and settings for the requests of a trace."""

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

from quire.cli.options import CommandSettings, HelpPage, argument, command, option
from quire.types.errors import InvalidRequest

EXAMPLES = (
    "quire advise trace.jsonl",
    "quire advise trace.jsonl --model smollm2:135m --on laptop --html advice.html",
    "quire advise --url http://127.0.0.1:8000 --json",
)


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """Options of `quire advise`."""

    trace: str = argument(
        "",
        "File of requests, one per line: OpenAI bodies with times, a batch file, or a request log of Quire or vLLM. "
        "Default: the request log of the server at --url.",
    )
    url: str = option("", "URL of a running Quire with a request log (--request-log), to be read instead of a file.")
    model: str = option(
        "", "Model to plan for: a name or path, as for `quire run`, or a known one such as llama-3.1-8b."
    )
    on: str = option("here", "Hardware to plan for: here (this machine), laptop, l4, rtx4090, a100, h100 or h200.")
    precision: str = option("", "Weight format to plan for, such as bf16, fp8, q8_0 or q4_k. Default: the model's own.")
    compare: str = option("", "Folder written by `quire bench compare`: the recommendation uses its measurements.")
    html: str = option("", "Also write the full report to this HTML file.")
    json: bool = option(False, "Print one JSON object.", "--json")


@command(AdviseOptions, "cache", "scheduler", "store", names=("api_key",), help_page=HelpPage(EXAMPLES))
def advise(options: AdviseOptions, settings: CommandSettings) -> None:
    """Read a trace of requests, simulate it, and recommend an engine and settings."""
    if bool(options.trace) == bool(options.url):
        raise InvalidRequest(
            "Give either a file of requests, or --url of a running Quire with a request log.", field="trace"
        )
    planning = import_module("quire.advisor.planning")  # imported here: no other command needs it
    with _status_line(sys.stderr.isatty() and not options.json) as show_status:
        show_status("reading the trace")
        trace, server = _read_trace(options, settings)
        request = planning.AdviceRequest(
            options.model, options.on, options.precision, _folder(options.compare), options.trace
        )
        advice = planning.advise_on_trace(trace, request, settings.config, settings.store, server, show_status)
        show_status("simulating replicas and roles")
        fleet = import_module("quire.cli.commands.advise_fleet").propose_fleet(advice)
    if options.html:
        more = () if fleet is None else fleet.html()
        written = import_module("quire.advisor.html_report").html_report(advice, more)
        Path(options.html).write_text(written, encoding="utf-8")
    if options.json:
        report = import_module("quire.advisor.json_report").advice_json(advice)
        typer.echo(json.dumps(report | {"fleet": None if fleet is None else fleet.json()}, indent=1))
        return
    console = import_module("rich.console").Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    import_module("quire.advisor.terminal_report").print_advice(advice, console)
    if fleet is not None:
        typer.echo("\n" + fleet.text())
    if options.html:
        typer.echo(f"\nWrote the full report to {options.html}.")


def _folder(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _read_trace(options: AdviseOptions, settings: CommandSettings) -> tuple[Any, Any]:
    """Return the requests, and /props of their server if --url was given."""
    traces = import_module("quire.report.trace")
    if options.trace:
        return traces.read_trace(Path(options.trace).expanduser()), None
    client = import_module("quire.cli.model.server_client").ServerClient(options.url, settings.config.serve.api_key)
    with closing(client):
        lines = client.get_text("/v1/requests").splitlines()
        if not lines:
            raise InvalidRequest(f"The request log of {options.url} is empty. Send it requests first.", field="url")
        return traces.parse_trace(lines, options.url), client.get("/props")


@contextmanager
def _status_line(is_visible: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on one terminal line. The line is erased at the end."""

    def show_status(text: str) -> None:
        if is_visible:
            print(f"\r\x1b[K{text}{' …' if text else ''}", end="", file=sys.stderr, flush=True)

    try:
        yield show_status
    finally:
        show_status("")
