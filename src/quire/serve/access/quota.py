"""How much each key has used: requests and tokens in a bucket that refills, and what runs now.

A request costs its prompt when it starts and its answer when that has come, so a bucket may go below nothing: then the
key waits until it has refilled. The clock is an argument. Numbers stand in rows, one for each key, which the processes
of a server may share (shared.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from quire.serve.access.keys import Key
from quire.serve.errors import QuotaExceeded

BUSY_RETRY_SECONDS = 1.0

REQUESTS, TOKENS = 0, 2  # where a row has the level of a bucket; behind it, when that was so
RUNNING = 4  # and from where on, for each process of the server, how many requests run
FRESH = math.nan  # the level of a bucket that nobody has touched


class Row(Protocol):
    """Numbers that can be changed."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> float: ...
    def __setitem__(self, at: int, value: float, /) -> None: ...


class Table(Protocol):
    """The rows of all keys."""

    def row(self, key: Key) -> AbstractContextManager[Row]:
        """One key's, for nobody else meanwhile."""
        ...


def new_row(num_processes: int = 1) -> list[float]:
    """The row of a key that has used nothing."""
    return [FRESH, 0.0, FRESH, 0.0, *[0.0] * num_processes]


class OwnTable:
    """The rows of a server that is one process."""

    def __init__(self) -> None:
        self._rows: dict[str, list[float]] = {}

    @contextmanager
    def row(self, key: Key) -> Iterator[Row]:
        """One key's."""
        yield self._rows.setdefault(key.name, new_row())


class Quotas:
    """Of all keys. Used by one thread; `place` is that of this process among those that share the table."""

    def __init__(self, table: Table | None = None, place: int = 0) -> None:
        self._table = OwnTable() if table is None else table
        self._running = RUNNING + place

    @contextmanager
    def running(self, key: Key, now: float) -> Iterator[None]:
        """While a request of this key runs. Raises QuotaExceeded if it may not."""
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

    def charge(self, key: Key, num_tokens: int) -> None:
        """Tokens that a request of this key has cost."""
        if key.tokens_per_minute is not None:
            with self._table.row(key) as row:
                row[TOKENS] -= num_tokens

    def _enter(self, key: Key, row: Row, now: float) -> None:
        num_running = int(sum(row[at] for at in range(RUNNING, len(row))))
        if key.max_concurrent is not None and num_running >= key.max_concurrent:
            public = f"The key {key.name} has {num_running} requests running, the most that it may have."
            raise QuotaExceeded(public, BUSY_RETRY_SECONDS)
        limits = ((REQUESTS, "requests", key.requests_per_minute), (TOKENS, "tokens", key.tokens_per_minute))
        for bucket, unit, per_minute in limits:
            if per_minute is not None:
                wait = _wait(row, bucket, per_minute, now)
                if wait > 0:
                    raise QuotaExceeded(f"The key {key.name} has used its {per_minute:g} {unit} a minute.", wait)
        row[REQUESTS] -= 1
        row[self._running] += 1


def _wait(row: Row, bucket: int, per_minute: float, now: float) -> float:
    """Fill a bucket up to now. Seconds until it holds what one request needs."""
    level, filled = row[bucket], row[bucket + 1]
    level = per_minute if math.isnan(level) else min(per_minute, level + (now - filled) * per_minute / 60.0)
    row[bucket], row[bucket + 1] = level, now
    return max(0.0, (min(1.0, per_minute) - level) * 60.0 / per_minute)
