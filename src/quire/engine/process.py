"""The main function of an engine process: loads a model and runs its step loop behind two sockets.

The parent holds the other end of our standard input. When that closes, the parent has ended, and this process ends too:
an engine without a client would only hold memory.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from quire.engine.echo import ECHO, Echo
from quire.engine.load import LoadedEngine, load_engine
from quire.engine.messages import Configure, Dead, EngineDied, Inward, Loading, Outward, Shutdown
from quire.engine.wire import decode, encode
from quire.observe.log import start_logging
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

LINGER_MS = 2000  # that the last messages may take to be sent


class Sockets:
    """The child's ends of the sockets."""

    def __init__(self, inward: str, outward: str) -> None:
        self._paths = [Path(address.removeprefix("ipc://")) for address in (inward, outward, inward + ECHO)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._echo = Echo(inward + ECHO)
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket, address in ((self._inbox, inward), (self._outbox, outward)):
            socket.set_hwm(0)  # no limit: nothing is dropped or blocks; clients bound the number of requests
            socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)
        self._wakes, self._wake = os.pipe()  # open until the process ends: threads may write to it until then
        for end in (self._wakes, self._wake):
            os.set_blocking(end, False)
        self._poller.register(self._wakes, zmq.POLLIN)
        self._send_poller = zmq.Poller()
        self._send_poller.register(self._outbox, zmq.POLLOUT)
        self._send_poller.register(sys.stdin.fileno(), zmq.POLLIN)

    def receive(self, timeout: float | None) -> Sequence[Inward]:
        """Return messages that have come, waiting up to `timeout` seconds for the first (None: for ever)."""
        ready: dict[Any, int] = dict(self._poller.poll(None if timeout is None else math.ceil(timeout * 1e3)))
        messages: list[Inward] = []
        if self._inbox in ready:
            try:
                while True:
                    messages += decode(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                pass
        if self._wakes in ready:
            os.read(self._wakes, 1 << 16)
        if sys.stdin.fileno() in ready:
            messages.append(Shutdown())
        return messages

    def wake(self) -> None:
        """End a wait for messages. Called from any thread."""
        with suppress(OSError):  # the pipe is full, so the wait ends anyway
            os.write(self._wake, b"\0")

    def send(self, messages: Sequence[Outward]) -> None:
        """Send messages. Waits for a parent that has not connected yet; drops them if the parent has ended.

        Never blocks in the socket itself: if the parent ended between the poll and the send, that would block forever.
        """
        frame = encode(messages)
        while self._outbox in dict(self._send_poller.poll()):
            with suppress(zmq.Again):
                self._outbox.send(frame, zmq.NOBLOCK)
                return

    def close(self) -> None:
        """Send the last messages, then close."""
        self._outbox.close(linger=LINGER_MS)
        self._inbox.close(linger=0)
        self._context.term()
        self._echo.close()
        with suppress(OSError):  # the parent removes them, unless it has ended
            for path in self._paths:
                path.unlink(missing_ok=True)
            self._paths[0].parent.rmdir()


def main(inward: str, outward: str) -> None:
    """Load the model that the first message names, then serve until Shutdown or the end of the parent."""
    sockets = Sockets(inward, outward)
    try:
        loaded = _load(sockets)
        if loaded is not None:
            sockets.send([loaded.ready])
            gc.collect()
            gc.freeze()  # these objects stay: keep collections during steps from scanning them
            loaded.core.wake = sockets.wake
            loaded.core.run(sockets.receive, sockets.send)
    finally:
        sockets.close()


def _load(sockets: Sockets) -> LoadedEngine | None:
    first = next(iter(sockets.receive(None)), None)
    if not isinstance(first, Configure):
        return None  # Shutdown before it began
    start_logging(first.config.observe, is_whole_process=True)
    try:
        return load_engine(first.model, first.device, first.config, lambda *stage: sockets.send([Loading(*stage)]))
    except QuireError as error:
        sockets.send([Dead(error)])
    except Exception as error:
        logger.exception("the model could not be loaded")
        sockets.send([Dead(EngineDied(f"The model could not be loaded: {type(error).__name__}: {error}"))])
    return None
