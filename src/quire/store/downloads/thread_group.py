"""Threads for several downloads at once. They end together: when one fails, or when the user interrupts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from quire.store.source import Progress

T = TypeVar("T")

JOIN_SECONDS = 2.0  # that the other threads have to end after one has failed


class Stopped(Exception):
    """Raised in the other threads once one has failed or the group has ended."""


class ThreadGroup:
    """Threads that run tasks. A task must report through `progress`, which raises Stopped once the group has ended."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._has_ended = threading.Event()

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Call the caller's progress, one thread at a time."""
        if self._has_ended.is_set():
            raise Stopped
        with self._lock:
            self._progress(what, done, total)

    def run(self, tasks: Sequence[Callable[[], T]], max_threads: int) -> list[T]:
        """Run all tasks and return their results in order. Raises the first error, after which no task begins."""
        if len(tasks) <= 1 or max_threads <= 1:
            return [task() for task in tasks]
        waiting, outcomes = enumerate(tasks), queue.SimpleQueue[tuple[int, Any, BaseException | None]]()
        threads = [
            threading.Thread(target=self._work, args=(waiting, outcomes), daemon=True)  # so that Ctrl-C does not wait
            for _ in range(min(max_threads, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        results: dict[int, T] = {}
        try:
            while len(results) < len(tasks):
                number, result, error = outcomes.get()
                if error is not None:
                    self._has_ended.set()
                    for thread in threads:
                        thread.join(JOIN_SECONDS)
                    raise error
                results[number] = result
        finally:
            self._has_ended.set()
        return [results[number] for number in range(len(tasks))]

    def _work(
        self,
        waiting: Iterator[tuple[int, Callable[[], Any]]],
        outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> None:
        while not self._has_ended.is_set():
            with self._lock:
                number, task = next(waiting, (-1, None))
            if task is None:
                return
            try:
                outcomes.put((number, task(), None))
            except BaseException as error:  # raised in the thread that called `run`
                outcomes.put((number, None, error))
                return
