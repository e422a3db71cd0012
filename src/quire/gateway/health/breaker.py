"""A circuit breaker: after several failures in a row, an upstream gets no requests for a while. Pure.

closed ──failures──▶ open ──time──▶ half open ──one success──▶ closed
                       ▲                 │
                       └────a failure────┘   the pause doubles, up to MAX_PAUSE
"""

from __future__ import annotations

from enum import StrEnum

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0


class Circuit(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # one request at a time is let through


class Breaker:
    """The breaker of one upstream."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._num_failures = 0  # in a row
        self._pause = 0.0
        self._until: float | None = None  # None: closed
        self._is_trying = False

    def state(self, now: float) -> Circuit:
        """Its state at this time."""
        if self._until is None:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._until else Circuit.HALF_OPEN

    def allows(self, now: float) -> bool:
        """May the upstream get a request now?"""
        state = self.state(now)
        return state is Circuit.CLOSED or (state is Circuit.HALF_OPEN and not self._is_trying)

    def start(self, now: float) -> None:
        """A request is sent."""
        self._is_trying = self.state(now) is Circuit.HALF_OPEN

    def succeed(self) -> None:
        """A request, or a health check, was answered."""
        self._num_failures, self._pause, self._until, self._is_trying = 0, 0.0, None, False

    def give_up(self) -> None:
        """A request ended without a verdict: the client has disconnected."""
        self._is_trying = False

    def fail(self, now: float) -> None:
        """A request failed."""
        self._num_failures += 1
        self._is_trying = False
        if self._until is not None or self._num_failures >= self._max_failures:
            self._pause = min(self._pause * 2 or FIRST_PAUSE, MAX_PAUSE)
            self._until = now + self._pause
