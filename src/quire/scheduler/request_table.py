"""All unfinished requests by id, and their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import Phase, RequestState
from quire.types.errors import InvalidRequest


class RequestTable:
    """Holds every sample from its arrival to its end, grouped by request."""

    def __init__(self) -> None:
        self._samples: dict[str, list[RequestState]] = {}
        self._deadlines: list[tuple[float, str]] = []  # heap

    def __len__(self) -> int:
        return len(self._samples)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._samples

    def __iter__(self) -> Iterator[RequestState]:
        return (state for samples in self._samples.values() for state in samples)

    def add(self, state: RequestState) -> None:
        """Add one sample of a request."""
        request = state.request
        if request.deadline is not None and request.id not in self._samples:
            heappush(self._deadlines, (request.deadline, request.id))
        self._samples.setdefault(request.id, []).append(state)

    def remove(self, state: RequestState) -> None:
        """Remove a finished sample."""
        samples = self._samples[state.request_id]
        samples.remove(state)
        if not samples:
            del self._samples[state.request_id]

    def samples(self, request_id: str) -> list[RequestState]:
        """Return the unfinished samples of a request."""
        return self._samples.get(request_id, [])

    def take_overdue(self, now: float) -> list[RequestState]:
        """Return the samples whose deadline has passed, each once."""
        overdue: list[RequestState] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heappop(self._deadlines)
            # The id may have been used again since: compare the deadline too.
            overdue += [state for state in self.samples(request_id) if state.request.deadline == deadline]
        return overdue

    def idle_sample(self, request_id: str, sample: int) -> RequestState:
        """Return a sample that is in no step in flight."""
        for state in self.samples(request_id):
            if state.sample == sample and not state.num_in_flight:
                return state
        raise InvalidRequest(f"Request {request_id!r} has no sample {sample} without a step in flight.", field="id")

    def check(self, running: RunningList, waiting: WaitingQueue) -> None:
        """Assert that each sample is in one of the two queues, in the phase that belongs to it."""
        assert sorted(map(id, [*running, *waiting])) == sorted(map(id, self)), "a request is lost or in two places"
        assert len(list(waiting)) == len(waiting)
        assert list(running) == sorted(running, key=lambda state: state.order)
        assert all(state.is_running for state in running)
        assert all(state.phase is Phase.WAITING for state in waiting)
        for state in self:
            state.check()
