"""A client of one engine, wherever that runs: submit, cancel, and news by request, for threads and for asyncio.

The link carries messages: to a thread of this process (local.py) or to a child process (launch.py). If the engine dies
and the client was made to restart it, another one is started and the live requests go on in that one (recovery.py); if
not, each of them gets a Failed that says so.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from quire.engine.live import Sink, Told
from quire.engine.messages import (
    Accepted,
    Alive,
    Cancel,
    Cancelled,
    Changed,
    Counters,
    Dead,
    EngineDied,
    Explained,
    Failed,
    Inward,
    Loading,
    News,
    Outward,
    Question,
    Ready,
    Resized,
    Snapshot,
    Submit,
    Unanswered,
)
from quire.engine.recovery import Recovery
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1  # how often deadlines, trials and controls are looked at while an engine is replaced
CLOSE_SECONDS = 10.0  # how long closing waits for a start that is under way
NEWS = (Tokens, Finished, Failed, Accepted)  # a tuple, which is looked through three times as fast as a union
HOPELESS = "The engine has died, and could not be started again."

Deliver = Callable[[Sequence[Outward]], None]
Post = Callable[[Callable[[], None]], object]  # have something called where the link is read


class Link(Protocol):
    """A running engine, as seen from here."""

    ready: Ready

    @property
    def trouble(self) -> str | None:
        """What is wrong with it now, as the end of a sentence about the engine."""

    def send(self, message: Inward) -> None: ...
    def close(self) -> None: ...  # orderly; returns when the engine is gone


Opens = Callable[[Deliver], Link]  # starts an engine, and waits until it is ready


class Restarts(NamedTuple):
    """How a client goes on when its engine dies."""

    max_held: int = 4096  # samples that may wait for the next one
    post: Post = lambda call: call()  # sinks that may be called by any thread need no more


class _Waiting(NamedTuple):
    """A cancel that the engine has not acknowledged."""

    answer: Future[bool]
    request_id: str
    reason: FinishReason
    sample: int | None


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

    def __init__(self, opens: Opens, restarts: Restarts | None = None) -> None:
        self._opens = opens
        self._restarts = restarts
        self._lock = threading.Lock()
        max_held = (restarts or Restarts()).max_held
        self._recovery = Recovery(lambda request: self._link.send(Submit(request)), max_held, time.monotonic)
        self._cancels: dict[str, deque[_Waiting]] = {}
        self._questions: deque[Future[Any]] = deque()  # answered in their order
        self._is_over = threading.Event()  # no engine, and there will be none
        self._away: str | None = None  # the engine is being restarted by its owner; this is the reason
        self._last_words = "it has not been started yet"  # of the last engine that died
        self._died_during_start = False  # an engine died before it was ours
        self._restarter: threading.Thread | None = None
        self._is_timed = False  # a thread looks at the deadlines of those who wait for an engine
        self._mail: _Mail | None = None
        self.num_restarts = 0
        self._link = opens(self._deliver)
        if not self._adopt(self._link):
            raise EngineDied("The engine died as soon as it had loaded the model.")

    @property
    def ready(self) -> Ready:
        """What the engine says of itself."""
        return self._link.ready

    @property
    def is_alive(self) -> bool:
        """Is there an engine that runs and responds?"""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Return what is wrong with the engine, as the end of a sentence about it. None: it runs and responds."""
        if not self._recovery.is_up:
            return f"is not running: {self._last_words}"
        return self._away or self._link.trouble

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Hand in a request. Its sink gets everything that is said about it, and then no more."""
        request = _seeded(request)
        with self._lock:
            if self._is_over.is_set():
                raise EngineDied("The engine is not running.")
            self._recovery.enter(request, sink)

    def cancel(
        self, request_id: str, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> Future[bool]:
        """End a request or one of its samples. The answer, which comes later: was it still there?"""
        answer: Future[bool] = Future()
        with self._lock:
            told = self._recovery.cancel(request_id, reason, sample)
            if told is None and self._recovery.is_up:
                self._cancels.setdefault(request_id, deque()).append(_Waiting(answer, request_id, reason, sample))
                self._link.send(Cancel(request_id, reason, sample))
                return answer
        self._post(told or ())
        answer.set_result(bool(told))
        return answer

    def counters(self, timeout: float = 10.0) -> Counters:
        """The engine's numbers. It answers between two steps."""
        counters: Counters = self.ask(Snapshot()).result(timeout)
        return counters

    def ask(self, question: Question) -> Future[Any]:
        """Have the engine answer between two steps: what, stands with the question in messages.py."""
        answer: Future[Any] = Future()
        with self._lock:
            if not self._recovery.is_up:
                raise EngineDied("The engine is not running: it is being restarted, or was closed.")
            self._questions.append(answer)
            self._link.send(question)  # within the lock: the first to wait is the first to be answered
        return answer

    def close(self) -> None:
        """End the engine; what is still live is told."""
        with self._lock:
            self._is_over.set()
        if self._restarter is not None:
            self._restarter.join(CLOSE_SECONDS)
        self._link.close()
        self._on_engine_death(EngineDied("The engine was closed."))

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
        """Called by the link, one call at a time. News are most of it, and are heard together."""
        news: list[News] = []
        for message in messages:
            if isinstance(message, NEWS):
                news.append(message)
            else:
                self._deliver_news(news)
                self._deliver_answer(message)
                news = []
        self._deliver_news(news)

    def _deliver_news(self, news: list[News]) -> None:
        if news:
            with self._lock:
                told = self._recovery.hear(news)
            _tell(told)

    def _deliver_answer(self, message: Outward) -> None:
        """What is said of the engine itself, or to whoever asked it."""
        match message:
            case Cancelled(request_id, found):
                with self._lock:
                    waiting = self._cancels[request_id].popleft()
                    if not self._cancels[request_id]:
                        del self._cancels[request_id]
                waiting.answer.set_result(found)
            case Counters() | Explained() | Changed() | Resized():
                with self._lock:
                    asked = self._questions.popleft()
                if isinstance(message, Counters) and self._restarts is not None:
                    message = replace(message, num_restarts=self.num_restarts)
                if asked.set_running_or_notify_cancel():
                    asked.set_result(message)
            case Unanswered(error):
                with self._lock:
                    asked = self._questions.popleft()
                if asked.set_running_or_notify_cancel():
                    asked.set_exception(error)
            case Dead(error):
                self._on_engine_death(error)
            case Loading() | Ready():
                self._away = message.stage if isinstance(message, Loading) else None
            case Alive():
                pass  # for the link

    def _on_engine_death(self, error: Exception) -> None:
        """The engine is gone: answer whoever asked it, and start another; or tell everyone."""
        died = error if isinstance(error, EngineDied) else EngineDied(str(error))
        with self._lock:
            self._died_during_start = True
            self._last_words = died.public.rstrip(".")
            if not self._recovery.is_up and not self._is_over.is_set():
                return  # it was not ours yet, or is not any more
            if self._restarts is None:
                self._is_over.set()
            goes_on = not self._is_over.is_set()
            told = self._recovery.died(died.was_killed) if goes_on else self._recovery.give_up(died)
            cancels, self._cancels = self._cancels, {}
            questions, self._questions = self._questions, deque()
            answers = [(each[0], self._recovery.cancel(*each[1:])) for waiting in cancels.values() for each in waiting]
            if goes_on:
                logger.error("the engine is started again: %s", died)
                self._begin_restart()
        _tell(told)
        for answer, ended in answers:
            _tell(ended or ())
            answer.set_result(bool(ended))
        for asked in questions:
            if asked.set_running_or_notify_cancel():
                asked.set_exception(died)

    # ── the next engine ──

    def _adopt(self, link: Link) -> bool:
        """An engine that is ready becomes ours. False: it has died meanwhile, or is not needed any more."""
        with self._lock:
            if not self._died_during_start and not self._is_over.is_set():
                self._link = link
                self._recovery.restored()
                return True
        link.close()
        return False

    def _begin_restart(self) -> None:
        """Called under the lock: whoever closes this client then knows of the thread."""
        self._restarter = _start(self._restart)
        if not self._is_timed:
            self._is_timed = True
            _start(self._keep_time)

    def _restart(self) -> None:
        """In a thread: start engines until one lives. The one before is gone by then, and its memory free."""
        self._link.close()
        while not self._is_over.is_set():
            with self._lock:
                self._died_during_start = False
                lost = self._recovery.give_up(EngineDied(HOPELESS)) if self._recovery.is_hopeless else []
            self._post(lost)
            if self._is_over.wait(self._recovery.pause):
                return
            try:
                if self._adopt(self._opens(self._deliver)):
                    self.num_restarts += 1
                    return
            except Exception as error:
                logger.error("the engine could not be started: %s", error)
            with self._lock:
                self._recovery.start_failed()

    def _keep_time(self) -> None:
        """In a thread, while requests wait for an engine: deadlines hold there, and trials and controls end."""
        while not self._is_over.wait(TICK_SECONDS):
            with self._lock:
                late = self._recovery.tick()
                is_needed = self._is_timed = self._recovery.is_under_way
            self._post(late)
            if not is_needed:
                return

    def _post(self, told: Sequence[Told]) -> None:
        """Tell, from whichever thread."""
        if told and self._restarts is not None:
            self._restarts.post(lambda: _tell(told))


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"quire{work.__name__}", daemon=True)
    thread.start()
    return thread


def _tell(told: Iterable[Told]) -> None:
    for sink, news in told:
        sink(news)


def _ended(news: News, num_open: int) -> int:
    """How many samples these news end."""
    if isinstance(news, Failed):
        return num_open if news.sample is None else 1
    return int(isinstance(news, Finished))


def _seeded(request: GenerateRequest) -> GenerateRequest:
    """A seed is chosen on this side: a request that is sent again must become the same text."""
    seed = request.sampling.seed
    if seed is None and request.sampling.is_greedy:
        return request  # nothing is left to chance
    if seed is not None and 0 <= seed < 1 << 64:
        return request
    seed = secrets.randbits(63) if seed is None else seed % (1 << 64)  # of any integer, 64 bits count
    return replace(request, sampling=replace(request.sampling, seed=seed))
