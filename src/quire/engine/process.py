"""The child's main: a model and its step loop, behind two sockets.

The parent holds the other end of our standard input. When that closes, the parent is gone, whatever became of it, and
so are we: an engine without a client would only hold memory.
"""

from __future__ import annotations

import gc
import logging
import math
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

LAST_WORDS_MS = 2000  # how long the last messages may take to leave


class Sockets:
    """The child's ends."""

    def __init__(self, inward: str, outward: str) -> None:
        self._paths = [Path(address.removeprefix("ipc://")) for address in (inward, outward, inward + ECHO)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._echo = Echo(inward + ECHO)
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket, address in ((self._inbox, inward), (self._outbox, outward)):
            socket.set_hwm(0)  # nothing is dropped and nobody blocks: clients bound what is under way
            socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)
        self._listener = zmq.Poller()
        self._listener.register(self._outbox, zmq.POLLOUT)
        self._listener.register(sys.stdin.fileno(), zmq.POLLIN)

    def receive(self, patience: float | None) -> Sequence[Inward]:
        """Messages that have come, waiting up to `patience` seconds for the first."""
        ready: dict[Any, int] = dict(self._poller.poll(None if patience is None else math.ceil(patience * 1e3)))
        said: list[Inward] = []
        if self._inbox in ready:
            try:
                while True:
                    said += decode(self._inbox.recv(zmq.NOBLOCK))
            except zmq.Again:
                pass
        if sys.stdin.fileno() in ready:
            said.append(Shutdown())
        return said

    def send(self, said: Sequence[Outward]) -> None:
        """Send messages. Waits for a parent that is not there yet; for one that is gone, they are dropped.

        Never blocks in the socket itself: a parent that goes between the look and the sending would be waited for
        forever.
        """
        frame = encode(said)
        while self._outbox in dict(self._listener.poll()):
            with suppress(zmq.Again):
                self._outbox.send(frame, zmq.NOBLOCK)
                return

    def close(self) -> None:
        """Let the last words out, then close."""
        self._outbox.close(linger=LAST_WORDS_MS)
        self._inbox.close(linger=0)
        self._context.term()
        self._echo.close()
        with suppress(OSError):  # the parent's to remove, but it may be gone
            for path in self._paths:
                path.unlink(missing_ok=True)
            self._paths[0].parent.rmdir()


def main(inward: str, outward: str) -> None:
    """Load what the first message names, then serve until told to stop or left alone."""
    sockets = Sockets(inward, outward)
    try:
        loaded = _load(sockets)
        if loaded is not None:
            sockets.send([loaded.ready])
            gc.collect()
            gc.freeze()  # what is here now stays: no step shall wait while it is looked through again
            loaded.core.run(sockets.receive, sockets.send)
    finally:
        sockets.close()


def _load(sockets: Sockets) -> LoadedEngine | None:
    first = next(iter(sockets.receive(None)), None)
    if not isinstance(first, Configure):
        return None  # told to stop before it began
    start_logging(first.config.observe, is_whole_process=True)
    try:
        return load_engine(first.model, first.device, first.config, lambda *stage: sockets.send([Loading(*stage)]))
    except QuireError as error:
        sockets.send([Dead(error)])
    except Exception as error:
        logger.exception("the model could not be loaded")
        sockets.send([Dead(EngineDied(f"The model could not be loaded: {type(error).__name__}: {error}"))])
    return None
