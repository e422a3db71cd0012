"""One engine for several processes: a hub serves its client to fronts, in the words of an engine.

A front's link sends what a link to an engine sends, and hears what that hears. The hub's client keeps the requests of
all fronts over the death of an engine; when a front goes, its requests are cancelled.
"""

from __future__ import annotations

import threading
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
from quire.engine.reading import LOOK_MS, MAX_FRAMES, Inbox, Reads
from quire.engine.wire import decode, encode
from quire.types.errors import QuireError
from quire.types.output import Finished

if TYPE_CHECKING:
    import asyncio

INWARD, OUTWARD = ".in", ".out"  # the two sockets of an address: each is used by one side's sender, or its reader


class Hub:
    """One model's. Used in the thread of an event loop, in which the client's link is read too."""

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox = self._bind(zmq.PULL, address + INWARD)
        self._outbox = self._bind(zmq.ROUTER, address + OUTWARD)  # what is for a front that is gone, it drops
        self._client: Client | None = None
        self._configure: Configure | None = None
        self._fronts: dict[bytes, set[str]] = {}  # who is there -> its live requests
        self._said: dict[bytes, list[Any]] = {}  # sent when all news of this turn are together
        self._trouble: str | None = None  # that fronts were told of
        for socket in (self._inbox, self._outbox):
            loop.add_reader(socket.fileno(), self._take)
        self._look()

    def open(self, client: Client, configure: Configure) -> None:
        """There is an engine: whoever has said Hello hears of it."""
        self._client, self._configure = client, configure
        for front in self._fronts:
            self._say(front, configure)
            self._say(front, client.ready)

    def drop(self, front: str) -> bool:
        """A front is gone: what it has asked for is not needed any more. Had it said Hello?"""
        requests = self._fronts.pop(front.encode(), None)
        for request_id in requests or ():
            assert self._client is not None
            self._client.cancel(request_id)
        return requests is not None

    def close(self) -> None:
        """Say no more. The client is its owner's to close."""
        for socket in (self._inbox, self._outbox):
            self._loop.remove_reader(socket.fileno())
            socket.close(linger=0)
        self._context.term()

    # ── what fronts say ──

    def _bind(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.bind(address)
        return socket

    def _take(self) -> None:
        """The descriptors say when something has come, and only once: what is left is taken in the next turn."""
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
            if self._client is not None and self._configure is not None:
                self._say(front, self._configure)
                self._say(front, self._client.ready)
        elif front not in self._fronts or self._client is None:
            return  # it was dropped
        elif isinstance(message, Submit):
            self._submit(self._client, front, message)
        elif isinstance(message, Cancel):
            answer = self._client.cancel(message.request_id, message.reason, message.sample)
            answer.add_done_callback(partial(self._acknowledge, front, message.request_id))
        elif not isinstance(message, Configure | Probe | Shutdown):
            self._ask(self._client, front, message)

    def _submit(self, client: Client, front: bytes, message: Submit) -> None:
        request_id = message.request.id
        try:
            client.submit(message.request, _Told(self, front, message.request.sampling.n))
        except QuireError as error:
            self._say(front, Failed(request_id, None, error))
        else:
            self._fronts[front].add(request_id)

    def _ask(self, client: Client, front: bytes, question: Question) -> None:
        try:
            client.ask(question).add_done_callback(partial(self._answer, front))
        except QuireError as error:
            self._say(front, Unanswered(error))

    # ── what they hear ──

    def hear(self, front: bytes, news: News, is_last: bool) -> None:
        """News of a request of theirs."""
        if is_last and front in self._fronts:
            self._fronts[front].discard(news.request_id)
        self._say(front, news)

    def _acknowledge(self, front: bytes, request_id: str, answer: Future[bool]) -> None:
        self._say(front, Cancelled(request_id, answer.result()))

    def _answer(self, front: bytes, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self._say(front, answer.result())
        else:
            self._say(front, Unanswered(error if isinstance(error, QuireError) else EngineDied(str(error))))

    def _say(self, front: bytes, message: Outward | Configure) -> None:
        if not self._said:
            self._loop.call_soon(self._send)
        self._said.setdefault(front, []).append(message)

    def _send(self) -> None:
        """A descriptor forgets that something has come when its socket sends: so look."""
        said, self._said = self._said, {}
        for front in said.keys() & self._fronts.keys():
            self._outbox.send_multipart([front, encode(said[front])])
        self._take()

    def _look(self) -> None:
        """Tell fronts when the engine is gone or does not respond, and when it does again."""
        if self._inbox.closed:
            return
        trouble = None if self._client is None else self._client.trouble
        if trouble != self._trouble and self._client is not None:
            self._trouble = trouble
            for front in self._fronts:
                self._say(front, self._client.ready if trouble is None else Loading(trouble, 0.0))
        self._loop.call_later(LOOK_MS / 1e3, self._look)


class _Told:
    """A sink: passes on the news of one request, and knows which are the last."""

    __slots__ = ("_front", "_hub", "_num_open")

    def __init__(self, hub: Hub, front: bytes, num_samples: int) -> None:
        self._hub = hub
        self._front = front
        self._num_open = num_samples

    def __call__(self, news: News) -> None:
        if isinstance(news, Finished | Failed):
            self._num_open -= self._num_open if isinstance(news, Failed) and news.sample is None else 1
        self._hub.hear(self._front, news, is_last=not self._num_open)


class HubLink:
    """A front's link to the hub. Waits until there is an engine."""

    def __init__(self, address: str, name: str, deliver: Deliver, reads: Reads) -> None:
        self._deliver = deliver
        self._name = name.encode()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = self._connect(zmq.PUSH, address + INWARD)
        hears = self._connect(zmq.DEALER, address + OUTWARD)
        self.inbox = Inbox(hears)
        self._sending = threading.Lock()
        self.is_alive = True
        self.trouble: str | None = None  # the hub says Loading
        hears.send(encode([Hello()]))
        self.configure, self.ready = self._wait_until_ready()
        self._reading = reads(self)

    def send(self, message: Inward) -> None:
        """Say it."""
        with self._sending:
            if not self._outbox.closed:
                self._outbox.send_multipart([self._name, encode([message])])

    def close(self) -> None:
        """Leave. What this front has running is cancelled by the hub, which sees the process end."""
        self.is_alive = False
        self._reading.stop()
        with self._sending:
            self._outbox.close(linger=0)
        self.inbox.close()
        self._context.term()

    def lost(self) -> None:
        """The hub has died, and the engine with it."""
        self._deliver([Dead(EngineDied("The process that has the engine has died."))])

    def take(self, wait_ms: int, max_frames: int | None = None) -> None:
        """Deliver what has come, and no more."""
        said = self.inbox.receive(wait_ms, max_frames)
        if said:
            self._deliver(said)

    def read(self, wait_ms: int) -> bool:
        """Deliver what has come. False: this link was closed."""
        self.take(wait_ms)
        return self.is_alive

    def _connect(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        if kind == zmq.DEALER:
            socket.setsockopt(zmq.IDENTITY, self._name)
        socket.connect(address)
        return socket

    def _wait_until_ready(self) -> tuple[Configure, Ready]:
        configure: Configure | None = None
        while True:
            for message in self.inbox.receive(LOOK_MS):
                if isinstance(message, Configure):
                    configure = message
                elif isinstance(message, Ready) and configure is not None:
                    return configure, message
