"""How much each key has used: requests and tokens in a bucket that refills, and what runs now.

A request costs its prompt when it starts and its answer when that has come, so a bucket may go below nothing: then the
key waits until it has refilled. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quire.serve.errors import QuotaExceeded
from quire.serve.keys import Key

BUSY_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _Bucket:
    """Holds what a minute allows, and refills steadily."""

    per_minute: float
    level: float
    filled: float  # when

    def wait(self, now: float, least: float) -> float:
        """Seconds until it holds `least`."""
        self.level = min(self.per_minute, self.level + (now - self.filled) * self.per_minute / 60.0)
        self.filled = now
        return max(0.0, (least - self.level) * 60.0 / self.per_minute)


@dataclass(slots=True)
class _Used:
    num_running: int = 0
    buckets: dict[str, _Bucket] = field(default_factory=dict)


class Quotas:
    """Of all keys. Used by one thread."""

    def __init__(self) -> None:
        self._used: dict[str, _Used] = {}

    @contextmanager
    def running(self, key: Key, now: float) -> Iterator[None]:
        """While a request of this key runs. Raises QuotaExceeded if it may not."""
        used = self._used.setdefault(key.name, _Used())
        if key.max_concurrent is not None and used.num_running >= key.max_concurrent:
            public = f"The key {key.name} has {used.num_running} requests running, the most that it may have."
            raise QuotaExceeded(public, BUSY_RETRY_SECONDS)
        for unit, per_minute in (("requests", key.requests_per_minute), ("tokens", key.tokens_per_minute)):
            if per_minute is None:
                continue
            bucket = used.buckets.setdefault(unit, _Bucket(per_minute, per_minute, now))
            wait = bucket.wait(now, min(1.0, per_minute))
            if wait > 0:
                raise QuotaExceeded(f"The key {key.name} has used its {per_minute:g} {unit} a minute.", wait)
        if "requests" in used.buckets:
            used.buckets["requests"].level -= 1
        used.num_running += 1
        try:
            yield
        finally:
            used.num_running -= 1

    def charge(self, key: Key, num_tokens: int) -> None:
        """Tokens that a request of this key has cost."""
        bucket = self._used.setdefault(key.name, _Used()).buckets.get("tokens")
        if bucket is not None:
            bucket.level -= num_tokens
