"""Runs many answers together for a caller that wants them all, no more at once than the engine's queue holds."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec

from quire.engine.client import Client
from quire.engine.messages import News, Tokens
from quire.engine.text_side import Answer
from quire.types.answer import Completion
from quire.types.request import GenerateRequest

LONG_BATCH = 8  # prompts, from which on a terminal shows a progress bar


class Room:
    """Free places in the engine's queue, for all threads that use the engine. One sample takes one place."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []

    def take(self, count: int, wait: bool) -> bool:
        """Take so many places. False: they are not free, and the caller does not wait for other threads."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._free >= count)
            if self._free < count:
                return False
            self._free -= count
            return True

    def give(self, count: int) -> None:
        """Give places back."""
        with self._changed:
            self._free += count
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(RuntimeError):  # of an event loop that has ended
                callback()

    def when_freed(self, callback: Callable[[], object]) -> None:
        """Call this once, from any thread, when places are given back."""
        with self._changed:
            self._callbacks.append(callback)


def complete(client: Client, room: Room, answers: list[Answer], progress: bool | None) -> list[Completion]:
    """Run all answers and return them in their order. If one fails, the others are cancelled."""
    news: queue.SimpleQueue[Sequence[News]] = queue.SimpleQueue()
    live: dict[str, Answer] = {}
    num_submitted = 0

    def submit_more() -> None:
        nonlocal num_submitted
        while num_submitted < len(answers):
            answer = answers[num_submitted]
            if not room.take(answer.request.sampling.n, wait=not live):
                return
            num_submitted += 1
            live[answer.request.id] = answer
            client.submit(answer.request, _Held(answer.request, news.put))

    try:
        with _progress(len(answers), progress) as advance:
            submit_more()
            while live:
                for each in news.get():
                    answer = live.get(each.request_id)
                    if answer is None:
                        continue  # its text has ended already; the engine was told
                    answer.take(each)
                    if answer.is_over:
                        del live[each.request_id]
                        room.give(answer.request.sampling.n)
                        advance()
                        submit_more()
    finally:
        for request_id, answer in live.items():
            room.give(answer.request.sampling.n)
            if not answer.is_over:
                client.cancel(request_id)
    return [answer.completion() for answer in answers]


class _Held:
    """Collects the messages of a request that is not streamed: sends its first tokens, then all others with its end.

    Waking a thread for each token would take a core from the engine. Only stop strings need every token at once.
    """

    def __init__(self, request: GenerateRequest, send: Callable[[Sequence[News]], None]) -> None:
        self._send = send
        self._is_watched = bool(request.sampling.stop)
        self._is_quiet = False  # it has begun
        self._held: list[News] = []

    def __call__(self, news: News) -> None:
        self._held.append(news)
        if type(news) is Tokens:
            if self._is_quiet:
                return
            self._is_quiet = not self._is_watched
        held, self._held = self._held, []
        self._send(held)


@contextmanager
def _progress(total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar on stderr: if it is asked for, or if someone looks and has reason to."""
    shown = wanted if wanted is not None else total >= LONG_BATCH and sys.stderr.isatty()
    if not shown or find_spec("rich") is None:
        yield lambda: None
        return
    rich_progress, rich_console = import_module("rich.progress"), import_module("rich.console")
    columns = rich_progress.MofNCompleteColumn(), rich_progress.TimeElapsedColumn()
    console = rich_console.Console(stderr=True)
    with rich_progress.Progress(*rich_progress.Progress.get_default_columns(), *columns, console=console) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)
