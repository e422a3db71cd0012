"""The cache's past: numbered events for routers, and eviction times for `explain`."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import NamedTuple

from quire.cache.radix import ROOT_BYTES, PrefixTree, tokens_of
from quire.types.events import (
    ROOT,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    CacheEvent,
    CheckpointRemoved,
    CheckpointStored,
)
from quire.types.request import CacheKey

MAX_EVENTS = 8192  # a reader that falls further behind takes a snapshot
MAX_EVICTIONS = 16384

new_tuple = tuple.__new__  # builds a named tuple without its own constructor: one is built for each stored block


class StoredBlock(NamedTuple):
    """A block added to the tree, in the tree's own terms. Converted to an event on demand, which is rare."""

    node: bytes
    parent: bytes  # the node before it; empty for a first block
    block: int
    edge: bytes  # its key in the tree: its parent's node, or a root, and its tokens
    owner: CacheKey
    group: int = 0

    def event(self, sequence: int) -> BlockStored:
        """Return it as an event for routers."""
        return BlockStored(
            sequence=sequence,
            node=int.from_bytes(self.node, "big"),
            parent=int.from_bytes(self.parent, "big") if self.parent else ROOT,
            block=self.block,
            tokens=tokens_of(self.edge[len(self.parent) or ROOT_BYTES :]),
            key=self.owner,
            group=self.group,
        )


def stored_block(tree: PrefixTree, node: int, owner: CacheKey) -> StoredBlock:
    """Return a block that is in the tree, as it was added."""
    return StoredBlock(tree.node(node), tree.parent_identity(node), node, tree.key(node), owner)


class History:
    """The newest events and evictions. Only the cache writes to it."""

    def __init__(self) -> None:
        self.sequence = 0  # of the newest event
        self._events: deque[StoredBlock | CacheEvent] = deque(maxlen=MAX_EVENTS)  # the last one has number `sequence`
        self._evictions: OrderedDict[bytes, float] = OrderedDict()  # edge -> time

    def record_stored(
        self, node: bytes, parent: bytes, block: int, edge: bytes, owner: CacheKey, group: int = 0
    ) -> None:
        """Record a block added to the tree; the arguments are the fields of `StoredBlock`."""
        self.sequence += 1
        self._events.append(new_tuple(StoredBlock, (node, parent, block, edge, owner, group)))

    def record_removed(self, node: int, edge: bytes, now: float) -> None:
        """Record an evicted block."""
        self.sequence += 1
        self._events.append(BlockRemoved(self.sequence, node))
        self._evictions[edge] = now
        if len(self._evictions) > MAX_EVICTIONS:
            self._evictions.popitem(last=False)

    def record_replaced(self, node: bytes) -> None:
        """Record that a block is no longer found by this identity: it is stored with more tokens under another one."""
        self.sequence += 1
        self._events.append(BlockRemoved(self.sequence, int.from_bytes(node, "big")))

    def record_window_removed(self, node: bytes, group: int) -> None:
        """Record a node's block of a window group that was evicted alone."""
        self.sequence += 1
        self._events.append(BlockRemoved(self.sequence, int.from_bytes(node, "big"), group))

    def record_checkpoint_stored(self, node: bytes, position: int) -> None:
        """Record a checkpoint in a node, or that it is named by another node now."""
        self.sequence += 1
        self._events.append(CheckpointStored(self.sequence, int.from_bytes(node, "big"), position))

    def record_checkpoint_removed(self, node: bytes, position: int) -> None:
        """Record an evicted checkpoint."""
        self.sequence += 1
        self._events.append(CheckpointRemoved(self.sequence, int.from_bytes(node, "big"), position))

    def record_cleared(self) -> None:
        """Record that all blocks were removed at once."""
        self.sequence += 1
        self._events.append(CacheCleared(self.sequence))
        self._evictions.clear()

    def since(self, sequence: int) -> list[CacheEvent] | None:
        """Return the events after `sequence`, oldest first. None: some are dropped, or it is of another history."""
        num_missed = self.sequence - sequence
        if not 0 <= num_missed <= len(self._events):
            return None
        missed = islice(self._events, len(self._events) - num_missed, None)
        return [
            each.event(number) if isinstance(each, StoredBlock) else each
            for number, each in enumerate(missed, sequence + 1)
        ]

    def eviction_time(self, edge: bytes) -> float | None:
        """Return when the block at this edge was evicted, if that is still recorded."""
        return self._evictions.get(edge)
