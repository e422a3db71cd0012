"""Transfers of blocks to and from other engines: which blocks to read, and where to write received ones.

A received block becomes an ordinary node of the tree, released like one that a request has computed: requests find it,
and it is evicted by the same ranks. No holds are kept between two calls of the engine's loop, so a lost connection
leaves nothing to clean up.

For models with window groups and states, a prefix includes what a request needs to resume after it: the blocks of each
window before its end, and the state exactly at its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.cache.blocks import BlockPool
from quire.cache.columns import Columns
from quire.cache.lease import NO_SLOT, Lease
from quire.cache.radix import NO_BLOCK, TOKEN_BYTES, PrefixTree, root_of
from quire.cache.sessions import Sessions
from quire.cache.writer import TreeWriter
from quire.types.request import CacheKey


class BlockPlace(NamedTuple):
    """The memory of one place of a prefix: a full-attention block, one of each window group, and a state."""

    block: int
    windows: tuple[int, ...] = ()  # NO_BLOCK: none
    state: int = NO_SLOT


class BlockContent(NamedTuple):
    """Which parts a received block has, beside the full-attention block."""

    windows: tuple[bool, ...] = ()
    has_state: bool = False  # the state after the block's last token


@dataclass(slots=True)
class Arrivals:
    """Blocks that are being written: held until `store` or `drop`."""

    lease: Lease
    tokens: array[int]
    first: int  # place of the first one
    places: list[BlockPlace] = field(default_factory=list)


class Moving:
    """Reads and stores blocks for transfers. Used by the engine's loop, between two steps."""

    def __init__(
        self,
        tree: PrefixTree,
        pool: BlockPool,
        sessions: Sessions,
        columns: Columns | None,
        writer: TreeWriter,
        pending: set[int],
    ) -> None:
        self._tree = tree
        self._pool = pool
        self._sessions = sessions
        self._columns = columns
        self._writer = writer
        self._pending = pending

    @property
    def num_windows(self) -> int:
        """Window groups of the model."""
        return 0 if self._columns is None else len(self._columns.windows)

    def num_blocks(self, tokens: array[int], key: CacheKey) -> int:
        """Return how many whole blocks of these tokens are computed and in the tree."""
        return len(self._path(tokens, key))

    def num_resumable(self, tokens: array[int], key: CacheKey) -> int:
        """Return the number of whole blocks after which a request can resume in every group."""
        path, size = self._path(tokens, key), self._tree.block_tokens
        if self._columns is None:
            return len(path)
        return self._columns.resume(path, len(path) * size) // size

    def departing(
        self, tokens: array[int], key: CacheKey, first: int, now: float, is_computing: bool = False
    ) -> list[BlockPlace]:
        """Return the memory of the whole blocks of these tokens from place `first` on that are in the tree.

        The last block of the tokens includes the state after it; window blocks are included where a request that
        resumes there reads them. `is_computing`: missing parts will be computed, so the list ends before a block that
        lacks one.
        """
        path, end = self._path(tokens, key), len(tokens) // self._tree.block_tokens
        blocks = path[first:]
        self._pool.hold(path, now)  # counts as a use: a prefix that others fetch is not evicted as unused
        self._pool.release(reversed(path), now)
        if self._columns is None:
            return [BlockPlace(block) for block in blocks]
        places = [self._place(path, first + at, end) for at in range(len(blocks))]
        if is_computing:
            lacking = (at for at, each in enumerate(places) if self._lacks(each, first + at, end))
            places = places[: next(lacking, len(places))]
        return places

    def _lacks(self, each: BlockPlace, place: int, end: int) -> bool:
        """Return whether a block lacks a part that a request resuming at the end reads."""
        assert self._columns is not None
        resume_at = end * self._tree.block_tokens
        has_windows = all(
            block != NO_BLOCK or place < group.first_place(resume_at)
            for group, block in zip(self._columns.windows, each.windows, strict=True)
        )
        return not has_windows or (self._columns.states is not None and place + 1 == end and each.state == NO_SLOT)

    def _place(self, path: Sequence[int], place: int, end: int) -> BlockPlace:
        assert self._columns is not None
        node, resume_at, states = path[place], end * self._tree.block_tokens, self._columns.states
        windows = tuple(
            group.block_of(node) if place >= group.first_place(resume_at) else NO_BLOCK
            for group in self._columns.windows
        )
        state = NO_SLOT
        if states is not None and place + 1 == end:
            position, slot = states.nearest(path[:end], resume_at)
            state = slot if position == resume_at else NO_SLOT
        return BlockPlace(node, windows, state)

    def reserve(
        self, tokens: array[int], key: CacheKey, first: int, contents: Sequence[BlockContent], now: float
    ) -> Arrivals | None:
        """Take memory for whole blocks of these tokens from place `first` on. The blocks before must be in the tree.

        None: they are not any more, or there is no room. The caller writes the blocks, then calls `store` or `drop`.
        """
        path = self._path(tokens, key)[:first]
        if len(path) < first:
            return None
        self._pool.hold(path, now)  # eviction must not take them
        count = len(contents)
        blocks = self._pool.take(count, now) if self._sessions.reclaim(count, now) else None
        if blocks is None:
            self._pool.release(reversed(path), now)
            return None
        size = self._tree.block_tokens
        lease = Lease(
            key, 0, (), path + blocks, path, (first + count) * size
        )  # 0 tokens known: no request waits for it
        arrivals = Arrivals(lease, tokens[: (first + count) * size], first)
        arrivals.places = [self._taken(block, each, now) for block, each in zip(blocks, contents, strict=True)]
        return arrivals

    def _taken(self, block: int, content: BlockContent, now: float) -> BlockPlace:
        """Take window blocks and a state slot. One without room is left out: a request then resumes earlier."""
        columns = self._columns
        if columns is None:
            return BlockPlace(block)
        taken = [
            group.pool.take(1, now) if is_sent else None
            for group, is_sent in zip(columns.windows, content.windows, strict=True)
        ]
        slot = columns.states.pool.take(1, now) if columns.states is not None and content.has_state else None
        windows = tuple(NO_BLOCK if each is None else each[0] for each in taken)
        return BlockPlace(block, windows, NO_SLOT if slot is None else slot[0])

    def store(self, arrivals: Arrivals, now: float) -> None:
        """Add blocks that were written to the tree. Requests find them from now on."""
        lease, size = arrivals.lease, self._tree.block_tokens
        self._writer.store_whole(lease, arrivals.tokens, len(arrivals.tokens), now)
        for at, each in enumerate(arrivals.places, arrivals.first):
            node = lease.path[at]
            if self._columns is not None:
                for group, block in zip(self._columns.windows, each.windows, strict=True):
                    if block != NO_BLOCK:
                        group.store(node, block, lease.key)
                if each.state != NO_SLOT and self._columns.states is not None:
                    self._columns.states.store(node, (at + 1) * size, each.state)
        self._release(arrivals, now)

    def drop(self, arrivals: Arrivals, now: float) -> None:
        """Free memory that was not written."""
        self._release(arrivals, now)

    def _release(self, arrivals: Arrivals, now: float) -> None:
        """Release all holds: what is in the tree stays cached, the rest is free."""
        lease = arrivals.lease
        for each in arrivals.places:
            if self._columns is not None:
                for group, block in zip(self._columns.windows, each.windows, strict=True):
                    if block != NO_BLOCK:
                        group.pool.release((block,), now)
                if each.state != NO_SLOT and self._columns.states is not None:
                    self._columns.states.pool.release((each.state,), now)
        self._pool.release(lease.twins(), now)
        self._pool.release(reversed(lease.blocks), now)

    def _path(self, tokens: array[int], key: CacheKey) -> list[int]:
        """Return the tree's blocks for whole blocks of the tokens, up to the first that may not be computed yet."""
        num_bytes = len(tokens) // self._tree.block_tokens * self._tree.block_tokens * TOKEN_BYTES
        path = self._tree.match(tokens.tobytes()[:num_bytes], root_of(key)).blocks
        if self._pending:
            path = path[: next((at for at, block in enumerate(path) if block in self._pending), len(path))]
        return path
