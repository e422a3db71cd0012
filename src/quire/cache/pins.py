"""Pins: ranges of tokens whose blocks are evicted later than others."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace

from quire.cache.blocks import BlockPool
from quire.cache.columns import Columns
from quire.cache.radix import PrefixTree, root_of
from quire.types.request import CacheKey, Pin


class Pins:
    """Sets and removes the pin ranks of cached blocks.

    What belongs to a pinned block is pinned too: its checkpoints, and its window blocks where the pin ends.
    """

    def __init__(self, tree: PrefixTree, pool: BlockPool, columns: Columns | None) -> None:
        self._tree = tree
        self._pool = pool
        self._columns = columns

    def add(self, tokens: array[int], key: CacheKey, pin: Pin, now: float) -> int:
        """Pin the cached part of a token range; return how many tokens of the range are cached."""
        match = self._tree.match(tokens.tobytes(), root_of(key))
        num_pinned = max(0, min(pin.end, match.num_tokens) - pin.start)
        cached = replace(pin, end=pin.start + num_pinned) if num_pinned else pin  # its window blocks are at its end
        self.apply((cached,), match.all_blocks, 0, now)
        return num_pinned

    def remove(self, tokens: array[int], key: CacheKey, now: float) -> int:
        """Remove the pins from the cached part of these tokens; return how many blocks had one."""
        match = self._tree.match(tokens.tobytes(), root_of(key))
        pinned = [block for block in match.all_blocks if self._pool.pin_of(block)]
        for block in pinned:
            self._pool.pin(block, 0, None, now)
        if self._columns is not None:
            for block in match.all_blocks:
                self._columns.unpin(block, now)
        return len(pinned)

    def apply(self, pins: Iterable[Pin], blocks: Iterable[int], begin: int, now: float) -> None:
        """Give consecutive blocks, the first at token `begin`, the ranks of the pins that overlap them.

        A pin only raises a rank: it never weakens a stronger pin of another request.
        """
        size = self._tree.block_tokens
        for pin in pins:
            for at, block in enumerate(blocks):
                overlaps = pin.start < begin + (at + 1) * size and pin.end > begin + at * size
                if overlaps and pin.rank >= self._pool.pin_of(block):
                    self._pool.pin(block, pin.rank, pin.ttl, now)
                if overlaps and self._columns is not None:
                    self._columns.pin(block, pin, begin + at * size, now)
