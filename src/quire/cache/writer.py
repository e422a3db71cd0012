"""Adds the blocks of leases to the tree."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from quire.cache.blocks import BlockPool
from quire.cache.columns import Columns
from quire.cache.history import History
from quire.cache.leaders import Leaders
from quire.cache.lease import Lease
from quire.cache.pins import Pins
from quire.cache.radix import NO_BLOCK, PrefixTree, root_of


class TreeWriter:
    """Stores computed blocks where others find them. Only the cache calls it."""

    def __init__(
        self, tree: PrefixTree, pool: BlockPool, columns: Columns | None, pins: Pins, leaders: Leaders, history: History
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._columns = columns
        self._pins = pins
        self._leaders = leaders
        self._history = history

    def store_whole(self, lease: Lease, tokens: array[int], num_tokens: int, now: float) -> None:
        """Add to the tree the lease's blocks that `num_tokens` tokens fill."""
        first, size = len(lease.path), self._tree.block_tokens
        if lease.is_private or (first + 1) * size > num_tokens:
            return
        for index in range(first, num_tokens // size):
            chunk = tokens[index * size : (index + 1) * size].tobytes()
            block = self._store(lease, lease.blocks[index], chunk, now)
            if block != lease.blocks[index]:
                self._pool.hold((block,), now)
                lease.first_twin = index if lease.first_twin is None else lease.first_twin
            lease.path.append(block)
        if lease.pins:
            self._pins.apply(lease.pins, lease.path[first:], first * size, now)
        self._leaders.announce(lease, tokens)

    def store_tail(self, lease: Lease, tokens: array[int], computed: int, now: float) -> tuple[int, ...]:
        """Add the last, partly filled block to the tree too: the next turn of a conversation begins inside it.

        Return it, or a block that begins with its tokens; nothing if there are none.
        """
        begin = len(lease.path) * self._tree.block_tokens
        chunk = tokens[begin:computed].tobytes()
        if lease.is_private or not chunk:
            return ()
        node, own = self._tree.node(lease.path[-1]) if lease.path else root_of(lease.key), lease.blocks[len(lease.path)]
        block = self._tree.child_with_head(node, chunk)
        if block == NO_BLOCK:
            block = self._store(lease, own, chunk, now)
            self._pins.apply(lease.pins, [block], begin, now)
        elif block != own and own in self._tree and not self._pool.pin_of(own):
            self._pool.drop(own, now)  # its head is redundant
        if self._columns is not None and self._tree.chunk(block) == chunk:
            self._columns.store_tail(lease, block, now)
        return (block,)

    def store_saved(self, lease: Lease, tokens: array[int], computed: int, now: float) -> Sequence[int]:
        """Add the head of the last block to the tree if a state was saved in it, so that others can resume there now.

        Return the lease's path, and that block. The lease continues to write the block, behind its head.
        """
        if computed >= lease.num_known:
            self._leaders.retract(lease)
        if lease.state is None or not lease.state.saved:
            return lease.path
        end = max((position for position, _ in lease.state.saved if position <= computed), default=0)
        return [*lease.path, *self.store_tail(lease, tokens, end, now)]

    def detach(self, lease: Lease, now: float) -> None:
        """Detach a lease from the tree: others find none of its blocks from now on."""
        self._leaders.retract(lease)
        lease.is_private = True
        self._pool.release(lease.twins(), now)
        lease.path, lease.first_twin = lease.blocks[: len(lease.path)], None

    def _store(self, lease: Lease, block: int, chunk: bytes, now: float) -> int:
        """Add a block to the tree at the end of the lease's path. Return it, or an equal block already there."""
        tree = self._tree
        if lease.state is not None and block in tree:
            return self._lengthen(lease, block, chunk, now)
        return self._insert(lease, block, chunk, now)

    def _lengthen(self, lease: Lease, block: int, chunk: bytes, now: float) -> int:
        """Give a block of which the tree has the head more tokens. Return it, or an equal block already there."""
        tree, columns = self._tree, self._columns
        assert columns is not None and tree.is_leaf(block), "only leases with a state store heads"
        equal = tree.find(tree.parent_node(block) + chunk)
        if equal != NO_BLOCK:
            self._pool.drop(block, now)
            return equal
        self._history.record_replaced(tree.node(block))
        tree.remove(block)
        self._insert(lease, block, chunk, now)
        columns.record_again(block, lease.key)
        return block

    def _insert(self, lease: Lease, block: int, chunk: bytes, now: float) -> int:
        tree = self._tree
        stored = tree.insert(block, lease.path[-1] if lease.path else NO_BLOCK, chunk, lease.key)
        if stored == block:
            node, parent, edge = tree.node(block), tree.parent_identity(block), tree.key(block)
            self._history.record_stored(node, parent, block, edge, lease.key)
            for shorter in tree.shorter_siblings(block):
                if not self._pool.refs(shorter) and not self._pool.pin_of(shorter):
                    self._pool.drop(shorter, now)
        return stored
