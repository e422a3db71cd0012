"""Runs many requests together for a caller that waits for all of them, never more at once than the queue holds."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec

from quire.engine.client import Client
from quire.engine.messages import News
from quire.engine.pending_answer import PendingAnswer
from quire.types.answer import Completion
from quire.types.output import Tokens
from quire.types.request import GenerateRequest

LONG_BATCH = 8  # prompts; from here on a terminal shows a progress bar


class QueueSlots:
    """Free slots of the engine's queue, shared by all threads that use the engine. A sample takes one slot."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []

    def take(self, count: int, wait: bool) -> bool:
        """Take `count` slots. Returns False if they are not free and the caller does not wait for other threads."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._free >= count)
            if self._free < count:
                return False
            self._free -= count
            return True

    def give(self, count: int) -> None:
        """Return slots."""
        with self._changed:
            self._free += count
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(RuntimeError):  # the callback's event loop has ended
                callback()

    def when_freed(self, callback: Callable[[], object]) -> None:
        """Call this once, from any thread, when slots are returned."""
        with self._changed:
            self._callbacks.append(callback)


def complete_all(
    client: Client, slots: QueueSlots, answers: list[PendingAnswer], progress: bool | None
) -> list[Completion]:
    """Run all answers and return them in their order. If one fails, the others are cancelled."""
    news: queue.SimpleQueue[Sequence[News]] = queue.SimpleQueue()
    live: dict[str, PendingAnswer] = {}
    num_submitted = 0

    def submit_more() -> None:
        nonlocal num_submitted
        while num_submitted < len(answers):
            answer = answers[num_submitted]
            if not slots.take(answer.request.sampling.n, wait=not live):
                return
            num_submitted += 1
            live[answer.request.id] = answer
            client.submit(answer.request, _Batched(answer.request, news.put))

    try:
        with _progress(len(answers), progress) as advance:
            submit_more()
            while live:
                for each in news.get():
                    answer = live.get(each.request_id)
                    if answer is None:
                        continue  # its text ended with a stop string; the engine is ending it
                    answer.take(each)
                    if answer.is_over:
                        del live[each.request_id]
                        slots.give(answer.request.sampling.n)
                        advance()
                        submit_more()
    finally:
        for request_id, answer in live.items():
            slots.give(answer.request.sampling.n)
            if not answer.is_over:
                client.cancel(request_id)
    return [answer.completion() for answer in answers]


class _Batched:
    """Batches the messages of a request that is not streamed: its first tokens are sent at once, the rest at its end.

    Waking a thread for each token would take a core from the engine. Only stop strings need every token at once.
    """

    def __init__(self, request: GenerateRequest, send: Callable[[Sequence[News]], None]) -> None:
        self._send = send
        self._has_stop = bool(request.sampling.stop)
        self._has_begun = False
        self._held: list[News] = []

    def __call__(self, news: News) -> None:
        self._held.append(news)
        if type(news) is Tokens:
            if self._has_begun:
                return
            self._has_begun = not self._has_stop
        held, self._held = self._held, []
        self._send(held)


@contextmanager
def _progress(total: int, is_requested: bool | None) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr. None: show one for a long batch on a terminal."""
    is_shown = is_requested if is_requested is not None else total >= LONG_BATCH and sys.stderr.isatty()
    if not is_shown or find_spec("rich") is None:
        yield lambda: None
        return
    rich_progress, rich_console = import_module("rich.progress"), import_module("rich.console")
    columns = rich_progress.MofNCompleteColumn(), rich_progress.TimeElapsedColumn()
    console = rich_console.Console(stderr=True)
    with rich_progress.Progress(*rich_progress.Progress.get_default_columns(), *columns, console=console) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)
