"""How far a replica's events are believed: by the cached tokens that it reports with each answer."""

from __future__ import annotations


class Trust:
    """Compares promised hits with reported ones. A replica that claims blocks which it does not have loses its claims.

    An honest replica falls short now and then: a block may be evicted while a request is on its way.
    """

    DECAY = 0.9  # per answer: about ten answers count
    MIN_TOKENS = 512.0  # promised, before a replica is judged
    TOLERATED = 0.75  # share of the promised tokens

    def __init__(self) -> None:
        self._promised = self._found = 0.0

    def record(self, promised: int, found: int) -> None:
        """Record an answer: the tokens that the index promised, and those that the replica found."""
        if promised > 0:
            self._promised = self._promised * self.DECAY + promised
            self._found = self._found * self.DECAY + min(found, promised)

    @property
    def share(self) -> float:
        """The share of its claims to count: 1 for a replica that keeps most of them, and for an unknown one."""
        if self._promised < self.MIN_TOKENS:
            return 1.0
        share = self._found / self._promised
        return 1.0 if share >= self.TOLERATED else share
