"""Progress of a pull on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from quire.store.source import Progress

LINE_SECONDS = 5.0
WriteLine = Callable[[str], object]


@contextmanager
def show_progress(write_line: WriteLine | None = None) -> Iterator[Progress]:
    """Yield a progress callback for the store. With `write_line`, lines go there instead of a bar."""
    if write_line is not None or not sys.stderr.isatty():
        yield _ProgressLines(write_line or print_to_stderr)
        return
    # Imported here: only a pull on a terminal needs it.
    bars, console = import_module("rich.progress"), import_module("rich.console").Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as bar:
        yield _ProgressBars(bar)


def print_to_stderr(text: str) -> None:
    """Print a line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


class _ProgressBars:
    """One bar for each file."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar  # rich.progress.Progress
        self._tasks: dict[str, Any] = {}  # by description

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if total is None and not done:  # a message without numbers
            self._bar.console.print(what, highlight=False, markup=False)
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)


class _ProgressLines:
    """For logs: a line when a file begins, then one every few seconds."""

    def __init__(self, write_line: WriteLine) -> None:
        self._write_line = write_line
        self._last_line_at: dict[str, float] = {}  # by description

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if total is None and not done:
            self._write_line(what)
        elif what not in self._last_line_at:
            self._write_line(f"{what} …")
        elif now - self._last_line_at[what] > LINE_SECONDS and total:
            self._write_line(f"{what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        else:
            return
        self._last_line_at[what] = now
