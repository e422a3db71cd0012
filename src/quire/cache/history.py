"""What became of blocks: numbered events for routers, and when a lost block was lost, for `explain`."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice

from quire.types.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent

KEPT_EVENTS = 8192  # a reader that falls further behind takes a snapshot
KEPT_LOSSES = 16384


class History:
    """Bounded memory of the past. Only the cache writes to it."""

    def __init__(self) -> None:
        self.sequence = 0  # of the newest event
        self._events: deque[CacheEvent] = deque(maxlen=KEPT_EVENTS)
        self._lost: OrderedDict[bytes, float] = OrderedDict()  # edge -> when it was evicted

    def stored(self, event: BlockStored) -> None:
        """A block can be found. The event carries the next number."""
        self.sequence += 1
        assert event.sequence == self.sequence
        self._events.append(event)

    def removed(self, node: int, edge: bytes, now: float) -> None:
        """A block was evicted."""
        self.sequence += 1
        self._events.append(BlockRemoved(self.sequence, node))
        self._lost[edge] = now
        if len(self._lost) > KEPT_LOSSES:
            self._lost.popitem(last=False)

    def cleared(self) -> None:
        """Everything was removed at once."""
        self.sequence += 1
        self._events.append(CacheCleared(self.sequence))
        self._lost.clear()

    def since(self, sequence: int) -> list[CacheEvent] | None:
        """The events after `sequence`, oldest first. None: some are no longer known, or it is not from this history."""
        missed = self.sequence - sequence
        if not 0 <= missed <= len(self._events):
            return None
        return list(islice(self._events, len(self._events) - missed, None))

    def lost_at(self, edge: bytes) -> float | None:
        """When the block at this edge was evicted, if it was and we still know."""
        return self._lost.get(edge)
