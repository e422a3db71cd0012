"""The waiting and the running requests.

Admission order: priority, then fair share, then longest cached prefix with ageing, then arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice

from quire.scheduler.limits import FairShare
from quire.scheduler.request_state import RequestState


class WaitingQueue:
    """Waiting requests by priority and key; those of one key in order of arrival."""

    def __init__(self, shares: FairShare, window: int, ageing: float) -> None:
        self._shares = shares
        self._window = window
        self._ageing = ageing
        self._levels: dict[int, dict[str, dict[RequestState, int]]] = {}  # priority -> key -> state -> its tokens
        self._num_waiting = 0
        self.num_tokens = 0  # known tokens of all of them, prefix hits not deducted
        self._num_deferred = 0  # of them, those that could not be admitted

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[RequestState]:
        return (state for level in self._levels.values() for line in level.values() for state in line)

    def add(self, state: RequestState) -> None:
        """Add a request in order of arrival: a preempted one returns to its old place."""
        level = self._levels.setdefault(state.request.priority, {})
        line = level.setdefault(state.request.key, {})
        is_out_of_order = line and next(reversed(line)).arrival_index > state.arrival_index
        line[state] = len(state.tokens)
        if is_out_of_order:
            level[state.request.key] = dict(sorted(line.items(), key=lambda item: item[0].arrival_index))
        self._num_waiting += 1
        self.num_tokens += len(state.tokens)

    def remove(self, state: RequestState) -> None:
        """Remove a request."""
        level = self._levels[state.request.priority]
        line = level[state.request.key]
        self.num_tokens -= line.pop(state)
        if not line:
            del level[state.request.key]
        if not level:
            del self._levels[state.request.priority]
        self._num_waiting -= 1
        self._num_deferred = min(self._num_deferred, self._num_waiting)

    @property
    def has_admissible(self) -> bool:
        """Return whether the next plan is expected to admit a request, if a row is free."""
        return self._num_waiting > self._num_deferred

    def end_plan(self, has_admitted: bool) -> None:
        """Note that a plan has ended. If it admitted no request, those that wait now cannot be admitted yet."""
        self._num_deferred = 0 if has_admitted else self._num_waiting

    def top_priority(self) -> int | None:
        """Return the priority of the most urgent request, or None if the queue is empty."""
        return min(self._levels, default=None)

    def scan(self, now: float, cached: Callable[[RequestState], int], is_stopped: bool = False) -> QueueScan:
        """Start looking for requests to admit. `cached` returns how many tokens of a request are in the tree."""
        return QueueScan(self, now, cached, is_stopped)

    def first(self, skipped: set[RequestState], score: Callable[[RequestState], float]) -> RequestState | None:
        """Return the next request to admit, without the skipped: among a key's oldest, the one of the highest score."""
        for priority in sorted(self._levels):
            lines = dict(self._levels[priority])
            while lines:
                line = lines.pop(min(lines, key=self._shares.charged) if len(lines) > 1 else next(iter(lines)))
                candidates = (state for state in line if state not in skipped) if skipped else line
                window = list(islice(candidates, self._window))
                if len(window) > 1:
                    return max(window, key=score)  # of equal scores the first: the oldest
                if window:
                    return window[0]
        return None

    def age_bonus(self, state: RequestState, now: float) -> float:
        """Return how many cached tokens its time in the queue is worth."""
        return self._ageing * (now - state.accounting.arrival_time)


class QueueScan:
    """One plan's pass through the queue. Each prompt is looked up in the tree once, and few are skipped."""

    MAX_SKIPPED = 16

    def __init__(
        self, queue: WaitingQueue, now: float, cached: Callable[[RequestState], int], is_stopped: bool
    ) -> None:
        self._queue = queue
        self._now = now
        self._cached = cached
        self._hits: dict[RequestState, int] = {}
        self._skipped: set[RequestState] = set()
        self._is_stopped = is_stopped

    def candidate(self) -> RequestState | None:
        """Return the next request to admit."""
        if self._is_stopped or len(self._skipped) >= self.MAX_SKIPPED:
            return None
        return self._queue.first(self._skipped, self._score)

    def skip(self, state: RequestState) -> None:
        """Pass over a request in this scan: it cannot be admitted now, but others may be."""
        self._skipped.add(state)

    def stop(self) -> None:
        """Return no further candidates."""
        self._is_stopped = True

    @property
    def num_skipped(self) -> int:
        """How many requests could not be admitted."""
        return len(self._skipped)

    def restart(self) -> QueueScan:
        """Return a new scan, in which the skipped requests are candidates again."""
        return QueueScan(self._queue, self._now, self._cached, self._is_stopped)

    def fits_all_within(self, num_tokens: int) -> bool:
        """Do all waiting prompts, prefix hits deducted, have at most `num_tokens`? False for a long queue."""
        if self._is_stopped or len(self._queue) > self.MAX_SKIPPED:
            return False
        return sum(len(state.tokens) - self._num_hit(state) for state in self._queue) <= num_tokens

    def _score(self, state: RequestState) -> float:
        return self._num_hit(state) + self._queue.age_bonus(state, self._now)

    def _num_hit(self, state: RequestState) -> int:
        hit = self._hits.get(state)
        if hit is None:
            hit = self._hits[state] = self._cached(state)
        return hit


class RunningList:
    """Running requests in the order in which they are planned; the least important is last."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states)

    def snapshot(self) -> list[RequestState]:
        """Return a copy, for loops that preempt."""
        return self._states.copy()

    def from_tail(self) -> Iterator[RequestState]:
        """Iterate from the least important request."""
        return reversed(self._states)

    def add(self, state: RequestState) -> None:
        """Add a request in its order, most often at the end."""
        if not self._states or self._states[-1].order <= state.order:
            self._states.append(state)
        else:
            insort(self._states, state, key=lambda each: each.order)

    def remove(self, state: RequestState) -> None:
        """Remove a request."""
        at = bisect_left(self._states, state.order, key=lambda each: each.order)
        assert self._states[at] is state
        del self._states[at]
