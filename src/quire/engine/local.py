"""An engine in a thread of this process: the same messages as over a socket, on a queue."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Sequence

from quire.engine.client import Deliver
from quire.engine.load import LoadedEngine
from quire.engine.messages import Inward, Shutdown

logger = logging.getLogger(__name__)


class LocalEngine:
    """A link to a core that this process runs itself. Native kernels release the interpreter's lock while they work."""

    def __init__(self, loaded: LoadedEngine, deliver: Deliver) -> None:
        self.ready = loaded.ready
        self.trouble: str | None = None  # a thread of this process is not watched
        self._core = loaded.core
        self._inbox: queue.SimpleQueue[Inward] = queue.SimpleQueue()
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, self._inbox, self._thread)  # at exit: not in the middle of a step

    def send(self, message: Inward) -> None:
        """Put a message where the loop finds it before its next step."""
        self._inbox.put(message)

    def close(self) -> None:
        """End the loop, and wait for the step that it is in."""
        _end(self._inbox, self._thread)

    def _run(self) -> None:
        try:
            self._core.run(self._receive, self._deliver)
        except Exception:  # what it means for requests was said by the core
            logger.exception("the engine's loop failed")

    def _receive(self, patience: float | None) -> Sequence[Inward]:
        if patience == 0.0 and self._inbox.empty():  # between two tokens of a stream, an exception is dear
            return ()
        messages: list[Inward] = []
        try:
            if patience is None or patience > 0.0:
                messages.append(self._inbox.get(timeout=patience))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages


def _end(inbox: queue.SimpleQueue[Inward], thread: threading.Thread) -> None:
    inbox.put(Shutdown())
    if thread is not threading.current_thread():
        thread.join()
