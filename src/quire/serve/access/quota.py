"""What each API key has used: token buckets for requests and tokens per minute, and a count of running requests.

A request is charged for its prompt when it starts and for its answer when it ends, so a bucket may fall below zero:
then the key waits until it has refilled. The clock is an argument. The numbers of a key are a row, which the processes
of a server may share (processes/shared.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from quire.serve.access.keys import ApiKey
from quire.serve.errors import QuotaExceeded

BUSY_RETRY_SECONDS = 1.0

REQUESTS, TOKENS = 0, 2  # index of a bucket's level in a row; the next number is the time of that level
RUNNING = 4  # index of the first count of running requests: there is one for each process
FRESH = math.nan  # the level of an unused bucket


class QuotaRow(Protocol):
    """The numbers of one key."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> float: ...
    def __setitem__(self, at: int, value: float, /) -> None: ...


class QuotaTable(Protocol):
    """The rows of all keys."""

    def row(self, key: ApiKey) -> AbstractContextManager[QuotaRow]:
        """The row of a key, locked meanwhile."""
        ...


def new_row(num_processes: int = 1) -> list[float]:
    """The row of a key that has used nothing."""
    return [FRESH, 0.0, FRESH, 0.0, *[0.0] * num_processes]


class LocalQuotaTable:
    """The rows of a server with one process."""

    def __init__(self) -> None:
        self._rows: dict[str, list[float]] = {}

    @contextmanager
    def row(self, key: ApiKey) -> Iterator[QuotaRow]:
        """The row of a key."""
        yield self._rows.setdefault(key.name, new_row())


class Quotas:
    """The quotas of all keys. Used by one thread; `place` numbers the processes that share the table."""

    def __init__(self, table: QuotaTable | None = None, place: int = 0) -> None:
        self._table = LocalQuotaTable() if table is None else table
        self._running = RUNNING + place

    @contextmanager
    def running(self, key: ApiKey, now: float) -> Iterator[None]:
        """Count a request of this key while it runs. Raises QuotaExceeded if it may not run."""
        if (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent) == (None, None, None):
            yield
            return
        with self._table.row(key) as row:
            self._enter(key, row, now)
        try:
            yield
        finally:
            with self._table.row(key) as row:
                row[self._running] -= 1

    def charge(self, key: ApiKey, num_tokens: int) -> None:
        """Charge the tokens of a request to its key."""
        if key.tokens_per_minute is not None:
            with self._table.row(key) as row:
                row[TOKENS] -= num_tokens

    def _enter(self, key: ApiKey, row: QuotaRow, now: float) -> None:
        num_running = int(sum(row[at] for at in range(RUNNING, len(row))))
        if key.max_concurrent is not None and num_running >= key.max_concurrent:
            public = f"The key {key.name} has {num_running} requests running, which is its limit."
            raise QuotaExceeded(public, BUSY_RETRY_SECONDS)
        limits = ((REQUESTS, "requests", key.requests_per_minute), (TOKENS, "tokens", key.tokens_per_minute))
        for bucket, unit, per_minute in limits:
            if per_minute is not None:
                wait = _wait(row, bucket, per_minute, now)
                if wait > 0:
                    raise QuotaExceeded(f"The key {key.name} has used its {per_minute:g} {unit} a minute.", wait)
        row[REQUESTS] -= 1
        row[self._running] += 1


def _wait(row: QuotaRow, bucket: int, per_minute: float, now: float) -> float:
    """Refill a bucket, and return the seconds until it holds enough for one request."""
    level, filled = row[bucket], row[bucket + 1]
    level = per_minute if math.isnan(level) else min(per_minute, level + (now - filled) * per_minute / 60.0)
    row[bucket], row[bucket + 1] = level, now
    return max(0.0, (min(1.0, per_minute) - level) * 60.0 / per_minute)
