"""Who waits, and who is next: by priority, then fair share, then longest cached prefix with ageing, then arrival."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice

from quire.scheduler.limits import FairShare
from quire.scheduler.request_state import RequestState


class WaitingQueue:
    """Waiting requests by priority and key, each key's in order of arrival."""

    def __init__(self, shares: FairShare, window: int, ageing: float) -> None:
        self._shares = shares
        self._window = window
        self._ageing = ageing
        self._levels: dict[int, dict[str, dict[RequestState, int]]] = {}  # priority -> key -> state -> its tokens
        self._num_waiting = 0
        self.num_tokens = 0  # that all of them have yet to compute, hits aside

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[RequestState]:
        return (state for level in self._levels.values() for line in level.values() for state in line)

    def add(self, state: RequestState) -> None:
        """Join the line; a request that was preempted takes its old place again."""
        level = self._levels.setdefault(state.request.priority, {})
        line = level.setdefault(state.request.key, {})
        behind = line and next(reversed(line)).arrival > state.arrival
        line[state] = len(state.tokens)
        if behind:
            level[state.request.key] = dict(sorted(line.items(), key=lambda each: each[0].arrival))
        self._num_waiting += 1
        self.num_tokens += len(state.tokens)

    def remove(self, state: RequestState) -> None:
        """Leave the line."""
        level = self._levels[state.request.priority]
        line = level[state.request.key]
        self.num_tokens -= line.pop(state)
        if not line:
            del level[state.request.key]
        if not level:
            del self._levels[state.request.priority]
        self._num_waiting -= 1

    def top_priority(self) -> int | None:
        """The priority of whoever is next."""
        return min(self._levels, default=None)

    def next(
        self, now: float, passed: set[RequestState], cached: Callable[[RequestState], int]
    ) -> RequestState | None:
        """Who is to be admitted next, those in `passed` aside. `cached` tells how much of a prompt is in the tree."""
        for priority in sorted(self._levels):
            lines = dict(self._levels[priority])
            while lines:
                key = min(lines, key=self._shares.served)
                line = lines.pop(key)
                window = list(islice((state for state in line if state not in passed), self._window))
                if len(window) > 1:
                    return max(window, key=lambda s: (cached(s) + self._ageing * (now - s.arrived), -s.arrival))
                if window:
                    return window[0]
        return None


class RunningList:
    """Running requests in the order in which they are served; the least important is last."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states)

    def snapshot(self) -> list[RequestState]:
        """The present list, for a walk during which it changes."""
        return self._states.copy()

    def from_tail(self) -> Iterator[RequestState]:
        """The least important first."""
        return reversed(self._states)

    def add(self, state: RequestState) -> None:
        """Start running."""
        insort(self._states, state, key=lambda each: each.order)

    def remove(self, state: RequestState) -> None:
        """Stop running."""
        at = bisect_left(self._states, state.order, key=lambda each: each.order)
        assert self._states[at] is state
        del self._states[at]
