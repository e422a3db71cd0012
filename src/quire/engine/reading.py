"""Who takes in what comes over a socket: a thread, or an event loop in between its other work.

In a loop, sinks are called in the loop's own thread: news of a step reach their tasks without a lock or a wake-up from
outside.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from quire.engine.wire import decode

if TYPE_CHECKING:
    import asyncio

LOOK_MS = 50  # how often the other side's life is looked at when it says nothing
END_SECONDS = 10.0  # how long the other side may take to finish the step that it is in
MAX_FRAMES = 16  # that an event loop takes in before it turns to its other work

Socket = zmq.Socket[bytes]


class Readable(Protocol):
    """A link, as its reader sees it."""

    inbox: Inbox

    @property
    def is_alive(self) -> bool:
        """Is there someone on the other side?"""

    def take(self, wait_ms: int, max_frames: int | None = None) -> None:
        """Deliver what has come, and no more."""

    def read(self, wait_ms: int) -> bool:
        """Deliver what has come. False: the other side has ended, and all that it said, and its end, was delivered."""


class Reading(Protocol):
    """Someone who takes in what the other side says, and tells of its end."""

    def stop(self) -> None:
        """The other side has ended: take in what it said last, and return."""


Reads = Callable[[Readable], Reading]


class Inbox:
    """The messages that come over a socket."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    @property
    def fileno(self) -> int:
        """A descriptor that becomes readable when something may have come."""
        return int(self._socket.fileno())

    def has_more(self) -> bool:
        """Is there something to read?"""
        return not self._socket.closed and bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, wait_ms: int, max_frames: int | None = None) -> list[Any]:
        """What has come, waiting so long for the first of it."""
        said: list[Any] = []
        if wait_ms and not self._socket.poll(wait_ms):
            return said
        try:
            for _ in range(max_frames) if max_frames else itertools.count():
                said += decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return said

    def close(self) -> None:
        """Whatever comes now is lost."""
        self._socket.close(linger=0)


class ThreadReader:
    """Reads in a thread of its own."""

    def __init__(self, link: Readable) -> None:
        self._link = link
        self._thread = threading.Thread(target=self._run, name="quire-link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread, which ends with the other side."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._link.read(LOOK_MS):
            pass


class LoopReader:
    """Reads in an event loop. Made in any thread; `stop` is called in another than the loop's."""

    def __init__(self, link: Readable, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._is_over = threading.Event()
        loop.call_soon_threadsafe(self._start)

    def stop(self) -> None:
        """Wait until the loop has seen the end."""
        if not self._loop.is_closed():
            self._is_over.wait(END_SECONDS)

    def _start(self) -> None:
        self._loop.add_reader(self._link.inbox.fileno, self._take)
        self._take()
        self._look()

    def _take(self) -> None:
        """The descriptor says when something has come, and only once: what is left is taken in the next turn."""
        if self._link.inbox.has_more():
            self._link.take(0, MAX_FRAMES)
            self._loop.call_soon(self._take)

    def _look(self) -> None:
        if self._link.is_alive:
            self._loop.call_later(LOOK_MS / 1e3, self._look)
            return
        self._loop.remove_reader(self._link.inbox.fileno)
        self._link.read(0)
        self._is_over.set()
