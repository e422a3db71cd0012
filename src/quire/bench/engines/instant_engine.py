"""An engine that computes nothing: it exchanges a real engine's messages over the same sockets and answers at once.

Its entry has its pace as an argument: tokens a second of all streams together, or "inf".
"""

from __future__ import annotations

import time

from quire.engine.messages import (
    Accepted,
    Cancel,
    Cancelled,
    Configure,
    Counters,
    Inward,
    Outward,
    Ready,
    Shutdown,
    Snapshot,
    Submit,
)
from quire.engine.process import Sockets
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason

FIRST_TOKEN, NUM_TOKENS = 1000, 8000  # a range of the vocabulary that is mostly plain words


class InstantEngine:
    """Gives every running request one token a step."""

    def __init__(self, sockets: Sockets, pace: float) -> None:
        self._sockets, self._pace = sockets, pace
        self._live: dict[str, tuple[int, int]] = {}  # request id -> tokens sent, max_tokens
        self._is_open = True
        self._num_steps = 0
        self._busy = 0.0

    def run(self) -> None:
        """Run steps until a Shutdown message."""
        due = time.perf_counter()
        while self._is_open:
            for message in self._sockets.receive(0.0 if self._live else None):
                self._handle(message)
            now = time.perf_counter()
            if not self._live or now < due:
                time.sleep(max(0.0, min(due - now, 0.001)))
                continue
            due = max(due + len(self._live) / self._pace, now - 0.1)
            self._sockets.send(self._step())
            self._busy += time.perf_counter() - now

    def _handle(self, message: Inward) -> None:
        match message:
            case Configure():
                self._sockets.send([Ready("instant", "none", 1 << 17, 1 << 20, 1 << 20, 16, 0.0)])
            case Submit(request):
                self._live[request.id] = (0, request.sampling.max_tokens or 1)
                self._sockets.send([Accepted(request.id)])
            case Cancel(request_id):
                was_running = self._live.pop(request_id, None) is not None
                self._sockets.send([Cancelled(request_id, was_running)])
            case Snapshot():
                self._sockets.send([Counters(num_steps=self._num_steps, busy_seconds=self._busy)])
            case Shutdown():
                self._is_open = False

    def _step(self) -> list[Outward]:
        self._num_steps += 1
        messages: list[Outward] = []
        for row, (request_id, (count, total)) in enumerate(list(self._live.items())):
            tokens = (FIRST_TOKEN + (self._num_steps * 31 + row * 17) % NUM_TOKENS,)
            if count + 1 < total:
                self._live[request_id] = (count + 1, total)
                messages.append(Tokens(request_id, 0, tokens))
            else:
                del self._live[request_id]
                messages.append(Finished(request_id, 0, FinishReason.LENGTH, tokens))
        return messages


def main(pace: str, inward: str, outward: str) -> None:
    """Run in the engine's process: serve until shutdown."""
    sockets = Sockets(inward, outward)
    try:
        InstantEngine(sockets, float(pace)).run()
    finally:
        sockets.close()
