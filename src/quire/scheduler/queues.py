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

    def walk(self, now: float, cached: Callable[[RequestState], int], is_over: bool = False) -> Walk:
        """Look for who is to be admitted. `cached` tells how much of a prompt is in the tree."""
        return Walk(self, now, cached, is_over)

    def first(self, skipped: set[RequestState], worth: Callable[[RequestState], float]) -> RequestState | None:
        """Who is next, the skipped aside; among a key's oldest requests, the one that is worth most."""
        for priority in sorted(self._levels):
            lines = dict(self._levels[priority])
            while lines:
                line = lines.pop(min(lines, key=self._shares.served) if len(lines) > 1 else next(iter(lines)))
                others = (state for state in line if state not in skipped) if skipped else line
                window = list(islice(others, self._window))
                if len(window) > 1:
                    return max(window, key=worth)  # of equals the first, which came first
                if window:
                    return window[0]
        return None

    def age(self, state: RequestState, now: float) -> float:
        """How many cached tokens its waiting is worth."""
        return self._ageing * (now - state.arrived)


class Walk:
    """One plan's way through the queue. Prompts are looked up in the tree once, and few are skipped."""

    MAX_SKIPPED = 16

    def __init__(self, queue: WaitingQueue, now: float, cached: Callable[[RequestState], int], is_over: bool) -> None:
        self._queue = queue
        self._now = now
        self._cached = cached
        self._hits: dict[RequestState, int] = {}
        self._skipped: set[RequestState] = set()
        self._is_over = is_over

    def candidate(self) -> RequestState | None:
        """Who should start next."""
        if self._is_over or len(self._skipped) >= self.MAX_SKIPPED:
            return None
        return self._queue.first(self._skipped, self._worth_of)

    def skip(self, state: RequestState) -> None:
        """It cannot start now, but others may."""
        self._skipped.add(state)

    def stop(self) -> None:
        """Nobody else may start."""
        self._is_over = True

    @property
    def num_skipped(self) -> int:
        """How many could not start."""
        return len(self._skipped)

    def again(self) -> Walk:
        """A second walk: those who were skipped may be able to start now."""
        return Walk(self._queue, self._now, self._cached, self._is_over)

    def can_end_within(self, num_tokens: int) -> bool:
        """Are the prompts of all who wait no longer than this together, hits aside? Of many it is not asked."""
        if self._is_over or len(self._queue) > self.MAX_SKIPPED:
            return False
        return sum(len(state.tokens) - self._num_hit(state) for state in self._queue) <= num_tokens

    def _worth_of(self, state: RequestState) -> float:
        return self._num_hit(state) + self._queue.age(state, self._now)

    def _num_hit(self, state: RequestState) -> int:
        hit = self._hits.get(state)
        if hit is None:
            hit = self._hits[state] = self._cached(state)
        return hit


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
        """Start running: most often behind all others."""
        if not self._states or self._states[-1].order <= state.order:
            self._states.append(state)
        else:
            insort(self._states, state, key=lambda each: each.order)

    def remove(self, state: RequestState) -> None:
        """Stop running."""
        at = bisect_left(self._states, state.order, key=lambda each: each.order)
        assert self._states[at] is state
        del self._states[at]
