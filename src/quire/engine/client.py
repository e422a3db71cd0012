"""A client of one engine, wherever that runs: submit, cancel, and news by request, for threads and for asyncio.

The link carries messages: to a thread of this process (local.py) or to a child process (launch.py). If the engine dies,
every live request gets a Failed that says so, and `relaunch` starts another.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from quire.engine.messages import (
    Accepted,
    Cancel,
    Cancelled,
    Changed,
    Counters,
    Dead,
    EngineDied,
    Explained,
    Failed,
    Finished,
    Inward,
    Loading,
    News,
    Outward,
    Question,
    Ready,
    Snapshot,
    Submit,
    Tokens,
)
from quire.types.errors import DuplicateRequest
from quire.types.request import FinishReason, GenerateRequest

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

Sink = Callable[[News], None]  # called where the link is read, a thread or an event loop: it must not block
Deliver = Callable[[Sequence[Outward]], None]


class Link(Protocol):
    """A running engine, as seen from here."""

    ready: Ready

    def send(self, message: Inward) -> None: ...
    def close(self) -> None: ...  # orderly; returns when the engine is gone


Opens = Callable[[Deliver], Link]  # starts an engine, and waits until it is ready


@dataclass(slots=True)
class _Live:
    """A request that is not over."""

    sink: Sink
    num_open: int  # samples


class _Mail:
    """From the link's thread to an event loop: one call wakes the loop for all the news of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._bag: deque[tuple[asyncio.Queue[News], News]] = deque()
        self._is_called = False

    def put(self, box: asyncio.Queue[News], news: News) -> None:
        """Called from the link's thread."""
        self._bag.append((box, news))
        if not self._is_called:
            self._is_called = True  # set before the call, unset before the bag is emptied: nothing is left lying
            try:
                self.loop.call_soon_threadsafe(self._empty)
            except RuntimeError:  # the loop has ended, and nobody is left to tell
                logger.debug("news of %s for an event loop that has ended", news.request_id)

    def _empty(self) -> None:
        self._is_called = False
        while self._bag:
            box, news = self._bag.popleft()
            box.put_nowait(news)


class Client:
    """Thread-safe. Who opened it closes it."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._cancels: dict[str, list[Future[bool]]] = {}
        self._questions: deque[Future[Any]] = deque()  # answered in their order
        self._is_dead = False
        self._mail: _Mail | None = None
        self.num_restarts = 0
        self._link = opens(self._deliver)

    @property
    def ready(self) -> Ready:
        """What the engine says of itself."""
        return self._link.ready

    @property
    def is_alive(self) -> bool:
        """Can it take requests?"""
        return not self._is_dead

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Hand in a request. Its sink gets everything that is said about it, and then no more."""
        request = _seeded(request)
        with self._lock:
            if self._is_dead:
                raise EngineDied("The engine is not running.")
            if request.id in self._live:
                raise DuplicateRequest(request.id)
            self._live[request.id] = _Live(sink, request.sampling.n)
        try:
            self._link.send(Submit(request))
        except BaseException:  # it holds what cannot be said over a socket
            with self._lock:
                self._live.pop(request.id, None)
            raise

    def cancel(
        self, request_id: str, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> Future[bool]:
        """End a request or one of its samples. The answer, which comes later: was it still there?"""
        answer: Future[bool] = Future()
        with self._lock:
            if self._is_dead:
                answer.set_result(False)
                return answer
            self._cancels.setdefault(request_id, []).append(answer)
        self._link.send(Cancel(request_id, reason, sample))
        return answer

    def counters(self, timeout: float = 10.0) -> Counters:
        """The engine's numbers. It answers between two steps."""
        counters: Counters = self.ask(Snapshot()).result(timeout)
        return counters

    def ask(self, question: Question) -> Future[Any]:
        """Have the engine answer between two steps: what, stands with the question in messages.py."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._is_dead:
                raise EngineDied("The engine is not running.")
            self._questions.append(answer)
            self._link.send(question)  # within the lock: the first to wait is the first to be answered
        return answer

    def relaunch(self) -> None:
        """Start a new engine after the old one has died. Requests that were lost are not sent again."""
        self._link.close()
        link = self._opens(self._deliver)
        with self._lock:
            self._link, self._is_dead = link, False
            self.num_restarts += 1

    def close(self) -> None:
        """End the engine; what is still live is told."""
        self._link.close()
        self._bury(EngineDied("The engine was closed."))

    # ── iterators ──

    def stream(self, request: GenerateRequest) -> Generator[News, None, None]:
        """Everything that is said about a request, for a thread. Closing the iterator cancels the request."""
        news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.submit(request, news.put)
        num_open = request.sampling.n
        try:
            while num_open:
                each = news.get()
                num_open -= _ended(each, num_open)
                yield each
        finally:
            if num_open:
                self.cancel(request.id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[News, None]:
        """The same for asyncio."""
        loops = import_module("asyncio")  # who calls this has it; threads alone need not wait 28 ms for it
        news: asyncio.Queue[News] = loops.Queue()
        mail = self._mail_of(loops.get_running_loop())
        self.submit(request, lambda each: mail.put(news, each))
        num_open = request.sampling.n
        try:
            while num_open:
                each = await news.get()
                num_open -= _ended(each, num_open)
                yield each
        finally:
            if num_open:
                self.cancel(request.id)

    def _mail_of(self, loop: asyncio.AbstractEventLoop) -> _Mail:
        if self._mail is None or self._mail.loop is not loop:
            self._mail = _Mail(loop)
        return self._mail

    # ── news ──

    def _deliver(self, messages: Sequence[Outward]) -> None:
        """Called by the link, one call at a time."""
        for message in messages:
            match message:
                case Tokens() | Finished() | Failed() | Accepted():
                    self._tell(message)
                case Cancelled(request_id, found):
                    with self._lock:
                        waiting = self._cancels.pop(request_id, [])
                    for answer in waiting:
                        answer.set_result(found)
                case Counters() | Explained() | Changed():
                    with self._lock:
                        asked = self._questions.popleft() if self._questions else None
                    if asked is not None and asked.set_running_or_notify_cancel():
                        asked.set_result(message)
                case Dead(error):
                    self._bury(error)
                case Loading() | Ready():
                    pass  # the link has waited for it

    def _tell(self, news: News) -> None:
        with self._lock:
            live = self._live.get(news.request_id)
            if live is None:
                return  # over for us: it was lost with an engine before this one
            live.num_open -= _ended(news, live.num_open)
            if not live.num_open:
                del self._live[news.request_id]
        live.sink(news)

    def _bury(self, error: Exception) -> None:
        """The engine is gone: say so to everyone who waits."""
        died = error if isinstance(error, EngineDied) else EngineDied(str(error))
        with self._lock:
            self._is_dead = True
            live, self._live = self._live, {}
            cancels, self._cancels = self._cancels, {}
            questions, self._questions = self._questions, deque()
        for request_id, each in live.items():
            each.sink(Failed(request_id, None, died))
        for answer in (answer for waiting in cancels.values() for answer in waiting):
            answer.set_result(False)
        for asked in questions:
            if asked.set_running_or_notify_cancel():
                asked.set_exception(died)


def _ended(news: News, num_open: int) -> int:
    """How many samples these news end."""
    if isinstance(news, Failed):
        return num_open if news.sample is None else 1
    return int(isinstance(news, Finished))


def _seeded(request: GenerateRequest) -> GenerateRequest:
    """A seed is chosen on this side: a request that is sent again must become the same text."""
    seed = request.sampling.seed
    if seed is not None and 0 <= seed < 1 << 64:
        return request
    seed = secrets.randbits(63) if seed is None else seed % (1 << 64)  # of any integer, 64 bits count
    return replace(request, sampling=replace(request.sampling, seed=seed))
