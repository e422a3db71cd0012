"""How far a benchmark is: a live table on a terminal, a line now and then elsewhere. It goes to standard error."""

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

from quire.bench.drive import Until
from quire.bench.heard import Heard, clock
from quire.bench.measure import Point, View
from quire.bench.rows import BY_KEY

LINE_SECONDS = 5.0
COLUMNS = ("output_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "failed")


class _Now:
    """The load that is running."""

    def __init__(self, what: str, until: Until, is_warm_up: bool) -> None:
        self.what, self._until, self._is_warm_up = what, until, is_warm_up
        self._began = clock()
        self._heard: list[Heard] = []
        self.num_tokens = 0

    def add(self, heard: Heard) -> None:
        self._heard.append(heard)
        self.num_tokens += heard.num_tokens

    @property
    def share(self) -> float:
        """That is done."""
        by_count = len(self._heard) / self._until.num_requests if self._until.num_requests else 0.0
        by_time = (clock() - self._began) / self._until.seconds if self._until.seconds else 0.0
        return min(1.0, max(by_count, by_time))

    def __str__(self) -> str:
        if self._is_warm_up:
            return f"{self.what}: warming up, {len(self._heard)} of {self._until.num_requests}"
        seconds = max(1e-9, clock() - self._began)
        of = f" of {self._until.num_requests}" if self._until.num_requests else ""
        said = [f"{len(self._heard)}{of} answers", f"{self.num_tokens / seconds:,.0f} tok/s"]
        good = [heard.first_token for heard in self._heard if heard.is_good]
        if good:
            said.append(f"first token {np.median(good) * 1e3:,.0f} ms")
        if failed := len(self._heard) - len(good):
            said.append(f"{failed} errors")
        return f"{self.what}: {', '.join(said)}"


class _Lines:
    """For logs."""

    def __init__(self) -> None:
        self._now: _Now | None = None
        self._said = 0.0

    def begin(self, what: str, until: Until, is_warm_up: bool) -> None:
        self._now, self._said = _Now(what, until, is_warm_up), clock()

    def answered(self, heard: Heard) -> None:
        if self._now is not None:
            self._now.add(heard)
            if clock() - self._said > LINE_SECONDS:
                self._said = clock()
                self.say(str(self._now))

    def done(self, who: str, point: Point) -> None:
        figures = ", ".join(f"{BY_KEY[key].label} {BY_KEY[key].shown(point.summary)}" for key in COLUMNS)
        self.say(f"{who}, {point.workload}, {point.load}: {figures}")

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _Screen:
    """For people: what is done as a table, what runs below it. It is drawn anew a few times a second."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._now: _Now | None = None
        self._rows: list[list[str]] = []

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for head in ("engine", "workload", "load", *(BY_KEY[key].label for key in COLUMNS)):
            table.add_column(head, justify="left" if head in ("engine", "workload", "load") else "right")
        for row in self._rows:
            table.add_row(*row)
        shown = [table] if self._rows else []
        if self._now is None:
            return Group(*shown)
        return Group(*shown, Text(str(self._now)), ProgressBar(1.0, self._now.share, width=60))

    def begin(self, what: str, until: Until, is_warm_up: bool) -> None:
        self._now = _Now(what, until, is_warm_up)

    def answered(self, heard: Heard) -> None:
        if self._now is not None:
            self._now.add(heard)

    def done(self, who: str, point: Point) -> None:
        figures = [BY_KEY[key].shown(point.summary) for key in COLUMNS]
        self._rows.append([who, point.workload, str(point.load), *figures])
        self._now = None

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)


@contextmanager
def shown() -> Iterator[View]:
    """A view that fits to where standard error goes."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        screen = _Screen(live)
        live.update(screen)
        yield screen
