"""Readers of a link's socket: one in a thread, one in an event loop.

In an event loop, sinks are called in the loop's own thread: messages of a step reach their tasks without a lock or a
wake-up from another thread.
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

POLL_MS = 50  # between checks that the other side is alive, while it sends nothing
END_SECONDS = 10.0  # that the other side may take to finish its current step
MAX_FRAMES = 16  # that an event loop reads before its other work

Socket = zmq.Socket[bytes]


class ReadableLink(Protocol):
    """What a reader needs of a link."""

    inbox: Inbox

    @property
    def is_alive(self) -> bool:
        """Is the other side alive?"""

    def take(self, wait_ms: int, max_frames: int | None = None) -> None:
        """Deliver what has come."""

    def read(self, wait_ms: int) -> bool:
        """Deliver what has come. False: the other side has ended, and all its messages, and its end, were delivered."""


class LinkReader(Protocol):
    """Delivers what comes over a link, and reports the end of the other side."""

    def stop(self) -> None:
        """Deliver the last messages of the other side, which has ended, and return."""


MakeReader = Callable[[ReadableLink], LinkReader]


class Inbox:
    """Receives messages from a socket."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    @property
    def fileno(self) -> int:
        """A file descriptor that becomes readable when something may have come."""
        return int(self._socket.fileno())

    def has_more(self) -> bool:
        """Is there something to read?"""
        return not self._socket.closed and bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, wait_ms: int, max_frames: int | None = None) -> list[Any]:
        """Return what has come, waiting up to `wait_ms` for the first message."""
        messages: list[Any] = []
        if wait_ms and not self._socket.poll(wait_ms):
            return messages
        try:
            for _ in range(max_frames) if max_frames else itertools.count():
                messages += decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            pass
        return messages

    def close(self) -> None:
        """Close the socket. Unread messages are lost."""
        self._socket.close(linger=0)


class ThreadReader:
    """Reads in its own thread."""

    def __init__(self, link: ReadableLink) -> None:
        self._link = link
        self._thread = threading.Thread(target=self._run, name="quire-link", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread, which ends with the other side."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._link.read(POLL_MS):
            pass


class LoopReader:
    """Reads in an event loop. Created in any thread; `stop` must not be called in the loop's thread."""

    def __init__(self, link: ReadableLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._has_ended = threading.Event()
        loop.call_soon_threadsafe(self._start)

    def stop(self) -> None:
        """Wait until the loop has handled the end."""
        if not self._loop.is_closed():
            self._has_ended.wait(END_SECONDS)

    def _start(self) -> None:
        self._loop.add_reader(self._link.inbox.fileno, self._take)
        self._take()
        self._check_alive()

    def _take(self) -> None:
        """Read what has come. The descriptor signals only once, so the rest is read in the next turn of the loop."""
        if self._link.inbox.has_more():
            self._link.take(0, MAX_FRAMES)
            self._loop.call_soon(self._take)

    def _check_alive(self) -> None:
        if self._link.is_alive:
            self._loop.call_later(POLL_MS / 1e3, self._check_alive)
            return
        self._loop.remove_reader(self._link.inbox.fileno)
        self._link.read(0)
        self._has_ended.set()
