"""Several downloads at once, which end together: when one of them fails, or when the user is tired of waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .source import Progress

T = TypeVar("T")

LEAVE_SECONDS = 2.0  # what is given to the others to end by themselves after one has failed


class Stopped(Exception):
    """Raised in those that still work when the work has become pointless."""


class Crew:
    """Threads with one purpose. Each must report through `progress`: that is where it learns that it is over."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._one_at_a_time = threading.Lock()
        self._over = threading.Event()

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Tell the caller's progress, one thread at a time."""
        if self._over.is_set():
            raise Stopped
        with self._one_at_a_time:
            self._progress(what, done, total)

    def run(self, tasks: Sequence[Callable[[], T]], at_once: int) -> list[T]:
        """The results of all tasks, in their order; or the first error, after which no task begins."""
        if len(tasks) <= 1 or at_once <= 1:
            return [task() for task in tasks]
        waiting, outcomes = enumerate(tasks), queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
        threads = [
            threading.Thread(target=self._work, args=(waiting, outcomes), daemon=True)  # Ctrl-C does not wait for them
            for _ in range(min(at_once, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        results: dict[int, T] = {}
        try:
            while len(results) < len(tasks):
                number, result, error = outcomes.get()
                if error is not None:
                    self._over.set()
                    for thread in threads:
                        thread.join(LEAVE_SECONDS)
                    raise error
                results[number] = result
        finally:
            self._over.set()
        return [results[number] for number in range(len(tasks))]

    def _work(
        self,
        waiting: Iterator[tuple[int, Callable[[], Any]]],
        outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> None:
        while not self._over.is_set():
            with self._one_at_a_time:
                number, task = next(waiting, (-1, None))
            if task is None:
                return
            try:
                outcomes.put((number, task(), None))
            except BaseException as error:  # the thread that waits decides what becomes of it
                outcomes.put((number, None, error))
                return
