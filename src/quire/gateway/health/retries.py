"""The budget of retries: a share of the requests, so that a fleet in trouble does not get twice the load. Pure."""

from __future__ import annotations

RESERVE = 10.0  # retries that are always possible after a quiet time


class RetryBudget:
    """A bucket that every request fills by `share`, and every retry empties by one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._level = RESERVE

    def add_request(self) -> None:
        """A request has arrived."""
        self._level = min(self._level + self._share, RESERVE + 100 * self._share)

    def take(self) -> bool:
        """May a request be sent once more? If so, that is counted."""
        if self._level < 1:
            return False
        self._level -= 1
        return True
