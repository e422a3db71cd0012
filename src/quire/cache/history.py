"""What became of blocks: numbered events for routers, and when a lost block was lost, for `explain`."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import NamedTuple

from quire.cache.radix import ROOT_BYTES, tokens_of
from quire.types.events import ROOT, BlockRemoved, BlockStored, CacheCleared, CacheEvent
from quire.types.request import CacheKey

KEPT_EVENTS = 8192  # a reader that falls further behind takes a snapshot
KEPT_LOSSES = 16384


class Birth(NamedTuple):
    """A block came into the tree, told by what is at hand. It becomes an event when someone asks, which is seldom."""

    node: bytes
    above: bytes  # the node before it; empty: it is a first block
    block: int
    edge: bytes  # its key in the tree: the node before it, or the root, and its tokens
    owner: CacheKey

    def event(self, sequence: int) -> BlockStored:
        """As the world is told."""
        return BlockStored(
            sequence=sequence,
            node=int.from_bytes(self.node, "big"),
            parent=int.from_bytes(self.above, "big") if self.above else ROOT,
            block=self.block,
            tokens=tokens_of(self.edge[len(self.above) or ROOT_BYTES :]),
            key=self.owner,
        )


class History:
    """Bounded memory of the past. Only the cache writes to it."""

    def __init__(self) -> None:
        self.sequence = 0  # of the newest event
        self._events: deque[Birth | CacheEvent] = deque(maxlen=KEPT_EVENTS)  # the last one has the newest number
        self._lost: OrderedDict[bytes, float] = OrderedDict()  # edge -> when it was evicted

    def stored(self, birth: Birth) -> None:
        """A block can be found."""
        self.sequence += 1
        self._events.append(birth)

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
        news = islice(self._events, len(self._events) - missed, None)
        return [each.event(at) if isinstance(each, Birth) else each for at, each in enumerate(news, sequence + 1)]

    def lost_at(self, edge: bytes) -> float | None:
        """When the block at this edge was evicted, if it was and we still know."""
        return self._lost.get(edge)
