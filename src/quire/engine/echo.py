"""The child's side of watch.py: a native thread that echoes every message without the interpreter's lock."""

from __future__ import annotations

import threading
from contextlib import suppress

import zmq

ECHO = ".echo"  # suffix to the address of the child's inbox


class Echo:
    """Echoes until `close`, even while Python code, a kernel or a compilation holds the interpreter's lock."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.bind(address)
        threading.Thread(target=self._run, name="quire-echo", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._context.term()

    def _run(self) -> None:
        try:
            with suppress(zmq.ContextTerminated):
                zmq.proxy(self._socket, self._socket)
        finally:
            self._socket.close(linger=0)
