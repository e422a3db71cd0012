"""The progress of a benchmark on standard error: a live table on a terminal, lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from quire.bench.figures.load_metrics import METRIC_BY_KEY
from quire.bench.load.load_test import Point, ProgressView
from quire.bench.load.patterns import StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.machine.clock import clock

LINE_SECONDS = 5.0
METRICS = tuple(
    METRIC_BY_KEY[key] for key in ("output_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "failed")
)


class _CurrentLoad:
    """The load that is running."""

    def __init__(self, title: str, stop: StopAfter, is_warm_up: bool) -> None:
        self._title, self._stop, self._is_warm_up = title, stop, is_warm_up
        self._began = clock()
        self._results: list[RequestResult] = []
        self._num_tokens = 0

    def add(self, result: RequestResult) -> None:
        self._results.append(result)
        self._num_tokens += result.num_tokens

    @property
    def share_done(self) -> float:
        by_count = len(self._results) / self._stop.num_requests if self._stop.num_requests else 0.0
        by_time = (clock() - self._began) / self._stop.seconds if self._stop.seconds else 0.0
        return min(1.0, max(by_count, by_time))

    def __str__(self) -> str:
        if self._is_warm_up:
            return f"{self._title}: warming up, {len(self._results)} of {self._stop.num_requests}"
        seconds = max(1e-9, clock() - self._began)
        total = f" of {self._stop.num_requests}" if self._stop.num_requests else ""
        parts = [f"{len(self._results)}{total} answers", f"{self._num_tokens / seconds:,.0f} tok/s"]
        first_tokens = [result.first_token for result in self._results if result.is_success]
        if first_tokens:
            parts.append(f"first token {np.median(first_tokens) * 1e3:,.0f} ms")
        if num_failed := len(self._results) - len(first_tokens):
            parts.append(f"{num_failed} errors")
        return f"{self._title}: {', '.join(parts)}"


class _LogView:
    """Prints a line every few seconds."""

    def __init__(self) -> None:
        self._current: _CurrentLoad | None = None
        self._last_line = 0.0

    def begin_load(self, title: str, stop: StopAfter, is_warm_up: bool) -> None:
        self._current, self._last_line = _CurrentLoad(title, stop, is_warm_up), clock()

    def add_result(self, result: RequestResult) -> None:
        if self._current is not None:
            self._current.add(result)
            if clock() - self._last_line > LINE_SECONDS:
                self._last_line = clock()
                self.say(str(self._current))

    def finish_load(self, engine: str, point: Point) -> None:
        figures = ", ".join(f"{metric.label} {metric.format(point.summary)}" for metric in METRICS)
        self.say(f"{engine}, {point.workload}, {point.load}: {figures}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _LiveView:
    """Draws a table of finished loads with the current one below it, a few times a second."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._current: _CurrentLoad | None = None
        self._rows: list[list[str]] = []

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("engine", "workload", "load"):
            table.add_column(head, justify="left")
        for metric in METRICS:
            table.add_column(metric.label, justify="right")
        for row in self._rows:
            table.add_row(*row)
        parts = [table] if self._rows else []
        if self._current is None:
            return Group(*parts)
        return Group(*parts, Text(str(self._current)), ProgressBar(1.0, self._current.share_done, width=60))

    def begin_load(self, title: str, stop: StopAfter, is_warm_up: bool) -> None:
        self._current = _CurrentLoad(title, stop, is_warm_up)

    def add_result(self, result: RequestResult) -> None:
        if self._current is not None:
            self._current.add(result)

    def finish_load(self, engine: str, point: Point) -> None:
        figures = [metric.format(point.summary) for metric in METRICS]
        self._rows.append([engine, point.workload, str(point.load), *figures])
        self._current = None

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)


@contextmanager
def benchmark_progress() -> Iterator[ProgressView]:
    """Yield a live view if standard error is a terminal, else a log view."""
    if not sys.stderr.isatty():
        yield _LogView()
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        view = _LiveView(live)
        live.update(view)
        yield view
