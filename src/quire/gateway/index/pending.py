"""Prefixes that requests on their way will store: known before the engine's events arrive."""

from __future__ import annotations

from collections.abc import Iterable


class PendingPrefixes:
    """Marks digests with replicas for a limited time. Two generations: a mark lives from one to two `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = 0.0
        self.young: dict[bytes, int] = {}
        self.old: dict[bytes, int] = {}

    def add(self, digests: Iterable[bytes], mask: int, now: float) -> None:
        """Mark these digests."""
        self.expire(now)
        young = self.young
        for digest in digests:
            young[digest] = young.get(digest, 0) | mask

    def expire(self, now: float) -> None:
        """Drop marks that are too old."""
        if now - self._since >= self._seconds:
            self.old = self.young if now - self._since < 2 * self._seconds else {}
            self.young, self._since = {}, now

    def __bool__(self) -> bool:
        return bool(self.young or self.old)

    def get(self, digest: bytes) -> int:
        """Return the mask of the replicas that will have this block."""
        return self.young.get(digest, 0) | self.old.get(digest, 0)

    def forget(self, mask: int) -> None:
        """Remove a replica's marks."""
        for marks in (self.young, self.old):
            for digest in [digest for digest, found in marks.items() if found & mask]:
                marks[digest] &= ~mask
