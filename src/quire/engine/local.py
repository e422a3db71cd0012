"""An engine in a thread of this process: the same messages as over a socket, in a queue."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Sequence
from functools import partial

from quire.engine.client import Deliver
from quire.engine.load import LoadedEngine
from quire.engine.messages import Inward, Probe, Shutdown

logger = logging.getLogger(__name__)


class LocalEngine:
    """A link to a core in a thread of this process. Native kernels release the interpreter's lock while they run."""

    def __init__(self, loaded: LoadedEngine, deliver: Deliver) -> None:
        self.ready = loaded.ready
        self.trouble: str | None = None  # a thread is not watched
        self._core = loaded.core
        self._inbox: queue.SimpleQueue[Inward] = queue.SimpleQueue()
        self._deliver = deliver
        self._core.wake = partial(self._inbox.put, Probe())
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, self._inbox, self._thread)  # no interpreter exit in the middle of a step

    def send(self, message: Inward) -> None:
        """Queue a message, which the loop handles before its next step."""
        self._inbox.put(message)

    def close(self) -> None:
        """End the loop, and wait for the current step."""
        _end(self._inbox, self._thread)

    def _run(self) -> None:
        try:
            self._core.run(self._receive, self._deliver)
        except Exception:  # the core has sent Dead already
            logger.exception("the engine's loop failed")

    def _receive(self, timeout: float | None) -> Sequence[Inward]:
        if timeout == 0.0 and self._inbox.empty():  # hot path: the exception below is expensive
            return ()
        messages: list[Inward] = []
        try:
            if timeout is None or timeout > 0.0:
                messages.append(self._inbox.get(timeout=timeout))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages


def _end(inbox: queue.SimpleQueue[Inward], thread: threading.Thread) -> None:
    inbox.put(Shutdown())
    if thread is not threading.current_thread():
        thread.join()
