"""A window group: blocks of layers that read no token further back than a window.

Its blocks have a pool and numbers of their own. The tree finds them through a column beside its nodes: a node has at
most one block of the group, and none after that block was evicted. A request holds the blocks of its window only; those
behind it stay cached until they are evicted. A long text passes many blocks and is resumed at few positions. So the
windows before these are evicted in the order of their use, and all other blocks that were passed before them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence, Set

from quire.cache.blocks import BlockPool
from quire.cache.history import History, StoredBlock, stored_block
from quire.cache.lease import WindowLease
from quire.cache.radix import NO_BLOCK, PrefixTree, common_head
from quire.types.request import CacheKey, Pin

LEAST_SPACING = 4  # windows between two that are kept at regular distances


class WindowColumn:
    """The pool and the column of one window size. Only `Columns` calls it."""

    def __init__(
        self, number: int, window: int, num_blocks: int, tree: PrefixTree, history: History, pending: Set[int]
    ) -> None:
        self.number = number  # in events; 0 is the group of all tokens
        self.window = window
        self._tree = tree
        self._history = history
        self._pending = pending  # nodes that are not known to be computed
        self._block_of = array("i", [NO_BLOCK]) * tree.num_blocks  # by node
        self._node_of = array("i", [NO_BLOCK]) * num_blocks  # by block
        self.pool = BlockPool(num_blocks, self, self._record_removed)

    # ── the storage of the pool ──

    def __contains__(self, block: int) -> bool:
        return self._node_of[block] != NO_BLOCK

    def is_leaf(self, block: int) -> bool:
        """Any block may be evicted alone."""
        return True

    def remove(self, block: int) -> int:
        """Remove a block from the column."""
        self._block_of[self._node_of[block]] = NO_BLOCK
        self._node_of[block] = NO_BLOCK
        self._tree.num_changes += 1
        return NO_BLOCK

    def _record_removed(self, block: int, now: float) -> None:
        self._history.record_window_removed(self._tree.node(self._node_of[block]), self.number)

    # ── the column ──

    def first_place(self, position: int) -> int:
        """Return the place of the first block that a query at `position`, or after it, reads."""
        return max(0, position + 1 - self.window) // self._tree.block_tokens

    def release(self, lease: WindowLease, end: int, every: int, now: float) -> None:
        """Release the lease's blocks before place `end`; those that no likely resume point needs as cold ones."""
        kept, cold = list[int](), list[int]()
        for place in range(lease.first, end):
            (kept if self._is_kept(lease, place, every) else cold).append(lease.blocks[place])
        self.pool.release(reversed(kept), now)
        self.pool.release_cold(cold, now)
        lease.blocks[lease.first : end] = [NO_BLOCK] * (end - lease.first)
        lease.first = end

    def _is_kept(self, lease: WindowLease, place: int, every: int) -> bool:
        """Does a request read this place that resumes at one of the lease's points, or at a regular distance?"""
        begin = place * self._tree.block_tokens
        every *= -(-LEAST_SPACING * self.window // every)
        points = (*lease.resume_points, (begin // every + 1) * every)
        return any(begin < point and self.first_place(point) <= place for point in points)

    def block_of(self, node: int) -> int:
        """Return the node's block, or NO_BLOCK."""
        return self._block_of[node]

    def resume(self, path: Sequence[int], at: int) -> int:
        """Return the last position, up to `at`, before which the path has all blocks of the window."""
        size, column = self._tree.block_tokens, self._block_of
        place, rest = divmod(at, size)
        if rest and column[path[place]] == NO_BLOCK:
            at = place * size + min(rest, self._shared_head(path[place]))
        first = self.first_place(at)
        while (place := place - 1) >= first:
            if column[path[place]] == NO_BLOCK:
                at = place * size + self._shared_head(path[place])
                first = self.first_place(at)
        return at

    def head_block(self, path: Sequence[int], at: int) -> int:
        """Return a block that begins with the tokens of the path from the last whole block to `at`, or NO_BLOCK."""
        place, num_tokens = divmod(at, self._tree.block_tokens)
        block = self._block_of[path[place]]
        if block == NO_BLOCK:
            block = next((self._block_of[node] for node in self._similar(path[place], num_tokens)), NO_BLOCK)
        return block

    def _shared_head(self, node: int) -> int:
        """Return how many of a node's first tokens another node with a block begins with."""
        chunk = self._tree.chunk
        return max((common_head(chunk(node), chunk(other)) for other in self._similar(node, 1)), default=0)

    def _similar(self, node: int, num_tokens: int) -> Iterator[int]:
        """Yield the siblings with a computed block that begin with the node's first `num_tokens` tokens."""
        for other in self._tree.siblings_with_head(node, num_tokens):
            if self._block_of[other] != NO_BLOCK and other not in self._pending:
                yield other

    def held_blocks(self, path: Sequence[int], at: int) -> list[int]:
        """Return the whole blocks that a request resuming at `at` reads."""
        column = self._block_of
        return [column[node] for node in path[self.first_place(at) : at // self._tree.block_tokens]]

    def store(self, node: int, block: int, owner: CacheKey) -> bool:
        """Give a node its block, unless it has one. Return whether it is this one."""
        if self._block_of[node] != NO_BLOCK:
            return self._block_of[node] == block
        self._block_of[node], self._node_of[block] = block, node
        self._tree.num_changes += 1
        self.record_stored(node, owner)
        return True

    def record_stored(self, node: int, owner: CacheKey) -> None:
        """Record the block that the node has."""
        if (stored := self.stored(node, owner)) is not None:
            self._history.record_stored(*stored)

    def stored(self, node: int, owner: CacheKey) -> StoredBlock | None:
        """Return the block that the node has, for events."""
        block = self._block_of[node]
        if block == NO_BLOCK:
            return None
        return stored_block(self._tree, node, owner)._replace(block=block, group=self.number)

    def drop(self, node: int) -> None:
        """Free the block of a node that is removed from the tree."""
        block = self._block_of[node]
        if block != NO_BLOCK:
            self.remove(block)
            self.pool.mark_removed(block)

    def pin(self, node: int, pin: Pin, begin: int, now: float) -> None:
        """Pin a node's block, whose first token is at `begin`, if requests that resume at the pin's end read it."""
        block = self._block_of[node]
        is_read = self.first_place(pin.end) * self._tree.block_tokens <= begin < pin.end
        if block != NO_BLOCK and is_read and pin.rank >= self.pool.pin_of(block):
            self.pool.pin(block, pin.rank, pin.ttl, now)

    def unpin(self, node: int, now: float) -> None:
        """Remove the pin of a node's block."""
        if (block := self._block_of[node]) != NO_BLOCK:
            self.pool.pin(block, 0, None, now)

    def check(self, holds: dict[int, int]) -> None:
        """Assert that column and pool agree, and that only nodes of the tree have blocks."""
        for node, block in enumerate(self._block_of):
            assert block == NO_BLOCK or (node in self._tree and self._node_of[block] == node)
        for block, node in enumerate(self._node_of):
            assert node == NO_BLOCK or self._block_of[node] == block
        self.pool.check(holds)
