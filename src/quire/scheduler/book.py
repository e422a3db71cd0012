"""Every request that is not over, by its id, and whose deadline comes next."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import RequestState
from quire.types.errors import InvalidRequest


class RequestBook:
    """A request is in it from `add` to its ending; its samples are its family."""

    def __init__(self) -> None:
        self._families: dict[str, list[RequestState]] = {}
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._families)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._families

    def __iter__(self) -> Iterator[RequestState]:
        return (state for family in self._families.values() for state in family)

    def enter(self, state: RequestState) -> None:
        """One sample of a request arrives."""
        request = state.request
        if request.deadline is not None and request.id not in self._families:
            heappush(self._deadlines, (request.deadline, request.id))
        self._families.setdefault(request.id, []).append(state)

    def leave(self, state: RequestState) -> None:
        """A sample is over."""
        family = self._families[state.request.id]
        family.remove(state)
        if not family:
            del self._families[state.request.id]

    def family(self, request_id: str) -> list[RequestState]:
        """The samples of a request that are not over."""
        return self._families.get(request_id, [])

    def overdue(self, now: float) -> list[RequestState]:
        """The samples whose deadline has passed. An id may have been used again: its own deadline counts."""
        late: list[RequestState] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due, request_id = heappop(self._deadlines)
            late += [state for state in self.family(request_id) if state.request.deadline == due]
        return late

    def idle_sample(self, request_id: str, sample: int) -> RequestState:
        """A sample that no step in flight is about."""
        for state in self.family(request_id):
            if state.sample == sample and not state.num_in_flight:
                return state
        raise InvalidRequest(f"Request {request_id!r} has no sample {sample} that waits for tokens.", field="id")

    def check(self, running: RunningList, waiting: WaitingQueue) -> None:
        """Each either runs or waits, and is what it says."""
        assert sorted(map(id, [*running, *waiting])) == sorted(map(id, self)), "a request is lost or in two places"
        assert len(list(waiting)) == len(waiting)
        assert list(running) == sorted(running, key=lambda state: state.order)
        assert all(state.lease is not None for state in running) and all(state.lease is None for state in waiting)
        for state in self:
            assert not state.is_over
            state.check()
