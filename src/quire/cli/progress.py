"""How long a pull still takes: a bar on a terminal, a line now and then elsewhere. It goes to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from quire.store.source import Progress

LINE_SECONDS = 5.0
Say = Callable[[str], object]


@contextmanager
def shown(say: Say | None = None) -> Iterator[Progress]:
    """A progress for the store that the user sees. `say`: where its lines go, instead of a bar."""
    if say is not None or not sys.stderr.isatty():
        yield _Lines(say or _print)
        return
    # By name, here: a command that pulls nothing does not wait for this package.
    bars, console = import_module("rich.progress"), import_module("rich.console").Console(stderr=True)
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True) as bar:
        yield _Bars(bar)


class _Bars:
    """One bar for each thing that is done."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar  # rich.progress.Progress
        self._tasks: dict[str, Any] = {}  # by what is done

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if total is None and not done:  # a sentence
            self._bar.console.print(what, highlight=False, markup=False)
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Lines:
    """For logs: what begins, and how far it is every few seconds."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._said: dict[str, float] = {}  # when something was said about it last

    def __call__(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if total is None and not done:
            self._say(what)
        elif what not in self._said:
            self._say(f"{what} …")
        elif now - self._said[what] > LINE_SECONDS and total:
            self._say(f"{what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        else:
            return
        self._said[what] = now
