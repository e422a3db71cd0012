"""One engine for several front processes: a hub passes messages between its client and the fronts' links.

A front's link sends and receives the same messages as a link to an engine. The hub's client resumes the requests of all
fronts when an engine dies; when a front ends, its requests are cancelled.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq

from quire.engine.client import Client, Deliver
from quire.engine.messages import (
    Cancel,
    Cancelled,
    Configure,
    Dead,
    EngineDied,
    Failed,
    Hello,
    Inward,
    Loading,
    News,
    Outward,
    Probe,
    Question,
    Ready,
    Shutdown,
    Submit,
    Unanswered,
)
from quire.engine.readers import END_SECONDS, MAX_FRAMES, POLL_MS, Inbox, MakeReader
from quire.engine.wire import decode, encode
from quire.types.errors import QuireError
from quire.types.output import Finished

if TYPE_CHECKING:
    import asyncio

INWARD, OUTWARD = ".in", ".out"  # the two sockets of an address, so that sending and reading may use different threads


class Hub:
    """The hub of one model. Used in the thread of the event loop that reads the client's link."""

    def __init__(self, address: str, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self._client = client
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox = self._bind(zmq.PULL, address + INWARD)
        self._outbox = self._bind(zmq.ROUTER, address + OUTWARD)  # drops messages for a front that has ended
        self._fronts: dict[bytes, set[str]] = {}  # identity of a front -> ids of its live requests
        self._queued: dict[bytes, list[Any]] = {}  # sent at the end of this turn of the loop
        self._trouble: str | None = None  # last reported to fronts
        for socket in (self._inbox, self._outbox):
            loop.add_reader(socket.fileno(), self._take)
        self._check_engine()

    def remove_front(self, front: str) -> None:
        """Cancel the requests of a front that has ended."""
        for request_id in self._fronts.pop(front.encode(), ()):
            self._client.cancel(request_id)

    def close(self) -> None:
        """Close the sockets. The client is closed by its owner."""
        for socket in (self._inbox, self._outbox):
            self._loop.remove_reader(socket.fileno())
            socket.close(linger=0)
        self._context.term()

    # ── messages from fronts ──

    def _bind(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.bind(address)
        return socket

    def _take(self) -> None:
        """Handle what has come. The descriptors signal once, so the rest is handled in the next turn of the loop."""
        if self._inbox.closed:
            return
        for socket in (self._outbox, self._inbox):
            try:
                for _ in range(MAX_FRAMES):
                    front, frame = socket.recv_multipart(zmq.NOBLOCK)
                    for message in decode(frame):
                        self._handle(front, message)
            except zmq.Again:
                continue
            self._loop.call_soon(self._take)

    def _handle(self, front: bytes, message: Inward) -> None:
        if isinstance(message, Hello):
            self._fronts[front] = set()
            self._queue(front, self._client.ready)
        elif front not in self._fronts:
            return  # removed already
        elif isinstance(message, Submit):
            self._submit(front, message)
        elif isinstance(message, Cancel):
            answer = self._client.cancel(message.request_id, message.reason, message.sample)
            answer.add_done_callback(partial(self._acknowledge, front, message.request_id))
        elif not isinstance(message, Configure | Probe | Shutdown):
            self._ask(front, message)

    def _submit(self, front: bytes, message: Submit) -> None:
        request_id = message.request.id
        try:
            self._client.submit(message.request, _FrontSink(self, front, len(message.request.unfinished_samples)))
        except QuireError as error:
            self._queue(front, Failed(request_id, None, error))
        else:
            self._fronts[front].add(request_id)

    def _ask(self, front: bytes, question: Question) -> None:
        try:
            self._client.ask(question).add_done_callback(partial(self._answer, front))
        except QuireError as error:
            self._queue(front, Unanswered(error))

    # ── messages to fronts ──

    def forward(self, front: bytes, news: News, is_last: bool) -> None:
        """Pass a message of one of its requests to a front."""
        if is_last and front in self._fronts:
            self._fronts[front].discard(news.request_id)
        self._queue(front, news)

    def _acknowledge(self, front: bytes, request_id: str, answer: Future[bool]) -> None:
        self._queue(front, Cancelled(request_id, answer.result()))

    def _answer(self, front: bytes, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self._queue(front, answer.result())
        else:
            self._queue(front, Unanswered(error if isinstance(error, QuireError) else EngineDied(str(error))))

    def _queue(self, front: bytes, message: Outward) -> None:
        if not self._queued:
            self._loop.call_soon(self._send)
        self._queued.setdefault(front, []).append(message)

    def _send(self) -> None:
        """Send what is queued. Sending clears the descriptor's signal, so received messages are handled after it."""
        queued, self._queued = self._queued, {}
        for front in queued.keys() & self._fronts.keys():
            self._outbox.send_multipart([front, encode(queued[front])])
        self._take()

    def _check_engine(self) -> None:
        """Report to fronts when the engine has died or does not respond, and when it responds again."""
        if self._inbox.closed:
            return
        trouble = self._client.trouble
        if trouble != self._trouble:
            self._trouble = trouble
            for front in self._fronts:
                self._queue(front, self._client.ready if trouble is None else Loading(trouble, 0.0))
        self._loop.call_later(POLL_MS / 1e3, self._check_engine)


class _FrontSink:
    """A sink that forwards the messages of one request, and detects the last."""

    __slots__ = ("_front", "_hub", "_num_open")

    def __init__(self, hub: Hub, front: bytes, num_samples: int) -> None:
        self._hub = hub
        self._front = front
        self._num_open = num_samples

    def __call__(self, news: News) -> None:
        if isinstance(news, Finished | Failed):
            self._num_open -= self._num_open if isinstance(news, Failed) and news.sample is None else 1
        self._hub.forward(self._front, news, is_last=not self._num_open)


class HubLink:
    """A front's link to one engine of the hub."""

    def __init__(self, address: str, name: str, deliver: Deliver, make_reader: MakeReader) -> None:
        self._deliver = deliver
        self._name = name.encode()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = self._connect(zmq.PUSH, address + INWARD)
        dealer = self._connect(zmq.DEALER, address + OUTWARD)
        self.inbox = Inbox(dealer)
        self._sending = threading.Lock()
        self.is_alive = True
        self.trouble: str | None = None  # the hub sends Loading instead
        dealer.send(encode([Hello()]))
        self.ready = self._wait_until_ready()
        self._reader = make_reader(self)

    def send(self, message: Inward) -> None:
        """Send a message to the hub."""
        with self._sending:
            if not self._outbox.closed:
                self._outbox.send_multipart([self._name, encode([message])])

    def close(self) -> None:
        """Close the link. The hub cancels this front's requests when the process ends."""
        self.is_alive = False
        self._reader.stop()
        with self._sending:
            self._outbox.close(linger=0)
        self.inbox.close()
        self._context.term()

    def on_hub_death(self) -> None:
        """The hub died, and the engine with it."""
        self._deliver([Dead(EngineDied("The process that runs the engine died."))])

    def take(self, wait_ms: int, max_frames: int | None = None) -> None:
        """Deliver what has come, and no more."""
        messages = self.inbox.receive(wait_ms, max_frames)
        if messages:
            self._deliver(messages)

    def read(self, wait_ms: int) -> bool:
        """Deliver what has come. False: this link is closed."""
        self.take(wait_ms)
        return self.is_alive

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        if kind == zmq.DEALER:
            socket.setsockopt(zmq.IDENTITY, self._name)
        socket.connect(address)
        return socket

    def _wait_until_ready(self) -> Ready:
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            for message in self.inbox.receive(POLL_MS):
                if isinstance(message, Ready):
                    return message
        self.inbox.close()
        raise EngineDied("The engine was unloaded while this process connected to it.")
