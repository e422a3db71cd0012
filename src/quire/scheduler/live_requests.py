"""What both schedulers do alike: refuse requests under load, cancel them, and return outcomes."""

from __future__ import annotations

from collections.abc import Callable

from quire.config import SchedulerConfig
from quire.scheduler.request_state import RequestState
from quire.scheduler.request_table import RequestTable
from quire.types.errors import Overloaded
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome


class LiveRequests:
    """The part of a scheduler that ends requests."""

    _requests: RequestTable
    _outcomes: list[Outcome]

    def cancel(
        self, request_id: str, now: float, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> bool:
        """End a request, or one sample of it, and free what it held. Return whether there was one.

        Its part in the result of a step in flight is dropped when it arrives.
        """
        states = [state for state in self._requests.samples(request_id) if sample in (None, state.sample)]
        for state in states:
            self._end(state, now, state.outcome(finish=reason))
        return bool(states)

    def cancel_all(self, now: float) -> None:
        """End every request."""
        for state in list(self._requests):
            self.cancel(state.request_id, now)

    def drain(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _end(self, state: RequestState, now: float, outcome: Outcome) -> None:
        raise NotImplementedError


def check_queue(
    config: SchedulerConfig, num_waiting: int, request: GenerateRequest, promised_wait: Callable[[], float]
) -> None:
    """Raise if the request would wait too long. A resumed request was accepted before, and is not refused."""
    if request.resumed:
        return
    is_full = num_waiting + request.sampling.n > config.max_waiting
    if not is_full and config.pressure != "reject":
        return
    wait = promised_wait()
    if is_full:
        public = f"The queue is full: {num_waiting} requests wait, {config.max_waiting} is the limit."
        raise Overloaded(f"{public} Retry later.", max(wait, 1.0))
    if wait > config.max_wait:
        public = f"The wait would be {wait:.1f} s, {config.max_wait:.1f} s is the limit."
        raise Overloaded(f"{public} Retry later.", max(wait - config.max_wait, 1.0))
