"""The client of one engine: submits and cancels requests, and delivers their messages, to threads and to asyncio.

The link carries messages to a thread of this process (local.py) or to a child process (launch.py). If the engine dies
and the client has a restart policy, another engine is started and resumes the live requests (recovery.py); without one,
every live request gets a Failed.
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

from quire.engine.live import Delivery, Sink
from quire.engine.messages import (
    Accepted,
    Alive,
    Answer,
    Cancel,
    Cancelled,
    Counters,
    Dead,
    EngineDied,
    Failed,
    Inward,
    Loading,
    News,
    Outward,
    Question,
    Ready,
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

TICK_SECONDS = 0.1  # between checks of deadlines, trials and controls while an engine is replaced
CLOSE_SECONDS = 10.0  # that closing waits for an engine start in progress
NEWS = (Tokens, Finished, Failed, Accepted)  # isinstance with a tuple takes a third of the time that a union takes
RESTART_FAILED = "The engine died, and could not be restarted."

Deliver = Callable[[Sequence[Outward]], None]
Post = Callable[[Callable[[], None]], object]  # runs a call in the thread that reads the link


class EngineLink(Protocol):
    """A connection to a running engine."""

    ready: Ready

    @property
    def trouble(self) -> str | None:
        """What is wrong with the engine now, as the end of the sentence "The engine …"; None: nothing."""

    def send(self, message: Inward) -> None: ...
    def close(self) -> None: ...  # in order; returns when the engine has ended


OpenLink = Callable[[Deliver], EngineLink]  # starts an engine and waits until it is ready


class RestartPolicy(NamedTuple):
    """How a client restarts its engine when that dies."""

    max_held: int = 4096  # samples that may wait for the next engine
    post: Post = lambda call: call()  # by default in the calling thread


class _PendingCancel(NamedTuple):
    """A cancel that the engine has not acknowledged yet."""

    answer: Future[bool]
    request_id: str
    reason: FinishReason
    sample: int | None


class _LoopMailbox:
    """Passes messages from the link's thread to an event loop: one call wakes the loop for all messages of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._letters: deque[tuple[asyncio.Queue[News], News]] = deque()
        self._is_called = False

    def put(self, box: asyncio.Queue[News], news: News) -> None:
        """Called from the link's thread."""
        self._letters.append((box, news))
        if not self._is_called:
            self._is_called = True  # set before the call, cleared before the letters are read: none is left behind
            try:
                self.loop.call_soon_threadsafe(self._empty)
            except RuntimeError:  # the loop has ended
                logger.debug("a message of request %s for an event loop that has ended", news.request_id)

    def _empty(self) -> None:
        self._is_called = False
        while self._letters:
            box, news = self._letters.popleft()
            box.put_nowait(news)


class Client:
    """Thread-safe. Closed by its creator."""

    def __init__(self, open_link: OpenLink, restarts: RestartPolicy | None = None) -> None:
        self._open_link = open_link
        self._restarts = restarts
        self._lock = threading.Lock()
        max_held = (restarts or RestartPolicy()).max_held
        self._recovery = Recovery(lambda request: self._link.send(Submit(request)), max_held, time.monotonic)
        self._cancels: dict[str, deque[_PendingCancel]] = {}
        self._questions: deque[Future[Any]] = deque()  # answered in order
        self._is_over = threading.Event()  # there is no engine, and none will be started
        self._absence: str | None = None  # reason why the engine's owner is restarting it
        self._death_reason = "it has not been started yet"  # of the last engine
        self._died_during_start = False  # an engine died before it was adopted
        self._restarter: threading.Thread | None = None
        self._has_timer = False  # a thread checks the deadlines of requests that wait for an engine
        self._mailbox: _LoopMailbox | None = None
        self.num_restarts = 0
        self._link = open_link(self._deliver)
        if not self._adopt(self._link):
            raise EngineDied("The engine died right after it had loaded the model.")

    @property
    def ready(self) -> Ready:
        """What the engine reported when it was ready."""
        return self._link.ready

    @property
    def is_alive(self) -> bool:
        """Does the engine run and respond?"""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """What is wrong with the engine, as the end of the sentence "The engine …". None: it runs and responds."""
        if not self._recovery.is_up:
            return f"is not running: {self._death_reason}"
        return self._absence or self._link.trouble

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Submit a request. Its sink is called with each of its messages, up to the last."""
        request = _with_seed(request)
        with self._lock:
            if self._is_over.is_set():
                raise EngineDied("The engine is not running.")
            self._recovery.add(request, sink)

    def cancel(
        self, request_id: str, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> Future[bool]:
        """End a request or one of its samples. The future's result: was it still live?"""
        answer: Future[bool] = Future()
        with self._lock:
            deliveries = self._recovery.cancel(request_id, reason, sample)
            if deliveries is None and self._recovery.is_up:
                self._cancels.setdefault(request_id, deque()).append(_PendingCancel(answer, request_id, reason, sample))
                self._link.send(Cancel(request_id, reason, sample))
                return answer
        self._post(deliveries or ())
        answer.set_result(bool(deliveries))
        return answer

    def counters(self, timeout: float = 10.0) -> Counters:
        """Return the engine's counters. The engine answers between two steps."""
        counters: Counters = self.ask(Snapshot()).result(timeout)
        return counters

    def ask(self, question: Question) -> Future[Any]:
        """Send a question, which the engine answers between two steps. messages.py names the answer of each."""
        answer: Future[Any] = Future()
        with self._lock:
            if not self._recovery.is_up:
                raise EngineDied("The engine is not running: it is being restarted, or was closed.")
            self._questions.append(answer)
            self._link.send(question)  # within the lock, so that answers come in the order of `_questions`
        return answer

    def close(self) -> None:
        """End the engine. Every live request gets a Failed."""
        with self._lock:
            self._is_over.set()
        if self._restarter is not None:
            self._restarter.join(CLOSE_SECONDS)
        self._link.close()
        self._on_engine_death(EngineDied("The engine was closed."))

    # ── iterators ──

    def stream(self, request: GenerateRequest) -> Generator[News, None, None]:
        """Submit a request and yield its messages, for a thread. Closing the iterator cancels the request."""
        news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.submit(request, news.put)
        num_open = request.sampling.n
        try:
            while num_open:
                each = news.get()
                num_open -= _num_ended(each, num_open)
                yield each
        finally:
            if num_open:
                self.cancel(request.id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[News, None]:
        """The same for asyncio."""
        loops = import_module("asyncio")  # callers have imported it; 28 ms that threads alone are spared
        news: asyncio.Queue[News] = loops.Queue()
        mail = self._mailbox_of(loops.get_running_loop())
        self.submit(request, lambda each: mail.put(news, each))
        num_open = request.sampling.n
        try:
            while num_open:
                each = await news.get()
                num_open -= _num_ended(each, num_open)
                yield each
        finally:
            if num_open:
                self.cancel(request.id)

    def _mailbox_of(self, loop: asyncio.AbstractEventLoop) -> _LoopMailbox:
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = _LoopMailbox(loop)
        return self._mailbox

    # ── messages from the engine ──

    def _deliver(self, messages: Sequence[Outward]) -> None:
        """Called by the link, one call at a time. Messages of requests, which are most, are handled together."""
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
                deliveries = self._recovery.record(news)
            _deliver_all(deliveries)

    def _deliver_answer(self, message: Outward) -> None:
        """Handle a message about the engine itself, or an answer to a question."""
        match message:
            case Cancelled(request_id, found):
                with self._lock:
                    cancel = self._cancels[request_id].popleft()
                    if not self._cancels[request_id]:
                        del self._cancels[request_id]
                cancel.answer.set_result(found)
            case answered if isinstance(answered, Answer):
                with self._lock:
                    answer = self._questions.popleft()
                if isinstance(message, Counters) and self._restarts is not None:
                    message = replace(message, num_restarts=self.num_restarts)
                if answer.set_running_or_notify_cancel():
                    answer.set_result(message)
            case Unanswered(error):
                with self._lock:
                    answer = self._questions.popleft()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)
            case Dead(error):
                self._on_engine_death(error)
            case Loading() | Ready():
                self._absence = message.stage if isinstance(message, Loading) else None
            case Alive():
                pass  # for the link

    def _on_engine_death(self, error: Exception) -> None:
        """Answer open questions and cancels; then start another engine, or fail all live requests."""
        died = error if isinstance(error, EngineDied) else EngineDied(str(error))
        with self._lock:
            self._died_during_start = True
            self._death_reason = died.public.rstrip(".")
            if not self._recovery.is_up and not self._is_over.is_set():
                return  # not adopted yet, or given up already
            if self._restarts is None:
                self._is_over.set()
            restarts = not self._is_over.is_set()
            deliveries = self._recovery.on_engine_death(died.was_killed) if restarts else self._recovery.give_up(died)
            cancels, self._cancels = self._cancels, {}
            questions, self._questions = self._questions, deque()
            answers = [(each[0], self._recovery.cancel(*each[1:])) for waiting in cancels.values() for each in waiting]
            if restarts:
                logger.error("restarting the engine: %s", died)
                self._begin_restart()
        _deliver_all(deliveries)
        for answer, ended in answers:
            _deliver_all(ended or ())
            answer.set_result(bool(ended))
        for answer in questions:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(died)

    # ── the next engine ──

    def _adopt(self, link: EngineLink) -> bool:
        """Use an engine that is ready. False: it has died since, or the client was closed."""
        with self._lock:
            if not self._died_during_start and not self._is_over.is_set():
                self._link = link
                self._recovery.on_engine_ready()
                return True
        link.close()
        return False

    def _begin_restart(self) -> None:
        """Called under the lock, so that `close` sees the thread."""
        self._restarter = _start(self._restart)
        if not self._has_timer:
            self._has_timer = True
            _start(self._watch_deadlines)

    def _restart(self) -> None:
        """Runs in a thread: start engines until one runs. The previous one has ended, so its memory is free."""
        self._link.close()
        while not self._is_over.is_set():
            with self._lock:
                self._died_during_start = False
                lost = self._recovery.give_up(EngineDied(RESTART_FAILED)) if self._recovery.is_hopeless else []
            self._post(lost)
            if self._is_over.wait(self._recovery.pause):
                return
            try:
                if self._adopt(self._open_link(self._deliver)):
                    self.num_restarts += 1
                    return
            except Exception as error:
                logger.error("the engine did not start: %s", error)
            with self._lock:
                self._recovery.on_start_failure()

    def _watch_deadlines(self) -> None:
        """Runs in a thread while requests wait for an engine: ends those past their deadline, trials and controls."""
        while not self._is_over.wait(TICK_SECONDS):
            with self._lock:
                late = self._recovery.tick()
                is_needed = self._has_timer = self._recovery.needs_ticks
            self._post(late)
            if not is_needed:
                return

    def _post(self, deliveries: Sequence[Delivery]) -> None:
        """Deliver in the thread that reads the link."""
        if deliveries and self._restarts is not None:
            self._restarts.post(lambda: _deliver_all(deliveries))


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"quire{work.__name__}", daemon=True)
    thread.start()
    return thread


def _deliver_all(deliveries: Iterable[Delivery]) -> None:
    for sink, news in deliveries:
        sink(news)


def _num_ended(news: News, num_open: int) -> int:
    """How many samples this message ends."""
    if isinstance(news, Failed):
        return num_open if news.sample is None else 1
    return int(isinstance(news, Finished))


def _with_seed(request: GenerateRequest) -> GenerateRequest:
    """Set a seed, so that a request that is sent again produces the same text."""
    seed = request.sampling.seed
    if seed is None and request.sampling.is_greedy:
        return request  # greedy: no randomness
    if seed is not None and 0 <= seed < 1 << 64:
        return request
    seed = secrets.randbits(63) if seed is None else seed % (1 << 64)  # the low 64 bits of any integer
    return replace(request, sampling=replace(request.sampling, seed=seed))
