"""The cache's past: numbered events for routers, and eviction times for `explain`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from quire.cache.radix import ROOT_BYTES, PrefixTree, tokens_of
from quire.types.digests import block_digest, little_endian, root_digest
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

    def event(self, sequence: int, digests: dict[int, bytes] | None = None) -> BlockStored:
        """Return it as an event for routers. With the digests of the nodes before it, it has one too, and adds it."""
        node = int.from_bytes(self.node, "big")
        parent = int.from_bytes(self.parent, "big") if self.parent else ROOT
        chunk = self.edge[len(self.parent) or ROOT_BYTES :]
        digest = parent_digest = b""
        if digests is not None and not self.group:
            parent_digest = digests[parent] if parent != ROOT else root_digest(self.owner)
            digest = digests[node] = block_digest(parent_digest, little_endian(chunk))
        tokens = tokens_of(chunk)
        return BlockStored(sequence, node, parent, self.block, tokens, self.owner, self.group, digest, parent_digest)


def stored_block(tree: PrefixTree, node: int, owner: CacheKey) -> StoredBlock:
    """Return a block that is in the tree, as it was added."""
    return StoredBlock(tree.node(node), tree.parent_identity(node), node, tree.key(node), owner)


class History:
    """The newest events and evictions. Only the cache writes to it.

    Digests are computed when events are read: recording does not pay for them, and without a reader there are none. A
    digest needs its parent's: if events were dropped unread, `rebase` computes all of them again.
    """

    def __init__(self) -> None:
        self.sequence = 0  # of the newest event
        self._events: deque[StoredBlock | CacheEvent] = deque(maxlen=MAX_EVENTS)  # the last one has number `sequence`
        self._read: deque[CacheEvent] = deque(maxlen=MAX_EVENTS)  # with digests; the last one has number `_num_read`
        self._num_read = 0
        self._digests: dict[int, bytes] = {}  # of all nodes after event `_num_read`
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
        if not num_missed:
            return []
        if not self._read_new() or not 0 <= num_missed <= len(self._read):
            return None
        return list(islice(self._read, len(self._read) - num_missed, None))

    def rebase(self, stored: Iterable[StoredBlock]) -> list[CacheEvent]:
        """Return the events of all present nodes, parents first, and continue from them."""
        digests: dict[int, bytes] = {}
        events: list[CacheEvent] = [each.event(self.sequence, digests) for each in stored]
        if not self._read_new():
            self._read.clear()
            self._digests, self._num_read = digests, self.sequence
        return events

    def _read_new(self) -> bool:
        """Compute the digests of new events. False: some were dropped before that."""
        num_new = self.sequence - self._num_read
        if num_new > len(self._events):
            return False
        for _ in range(len(self._events) - num_new):
            self._events.popleft()
        while self._events:
            self._num_read += 1
            self._read.append(self._with_digest(self._events.popleft()))
        return True

    def _with_digest(self, event: StoredBlock | CacheEvent) -> CacheEvent:
        match event:
            case StoredBlock():
                return event.event(self._num_read, self._digests)
            case BlockRemoved(_, node, 0):
                return event._replace(digest=self._digests.pop(node))
            case CacheCleared():
                self._digests.clear()
        return event

    def eviction_time(self, edge: bytes) -> float | None:
        """Return when the block at this edge was evicted, if that is still recorded."""
        return self._evictions.get(edge)
