"""Ways through the prefix tree that were walked a moment ago.

Requests that come together often begin alike: with the same instructions, the same document, the same examples. The
first of them finds its blocks one by one; for the others a few comparisons of bytes say how far they go the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

KEPT_TRAILS = 16


class Trail(NamedTuple):
    """A way from a root to a node, which still leads there as long as its last block has that identity."""

    data: bytes  # the tokens of its blocks
    blocks: list[int]
    node: bytes  # the identity of its last block


class Trails:
    """The newest way below each of the first blocks that were used last. Only `PrefixTree` calls it."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._trails: OrderedDict[int, Trail | None] = OrderedDict()  # by their first block; None: it was used once

    def find(self, first: int, nodes: list[bytes]) -> Trail | None:
        """The way that begins with this block, if it is still there."""
        trail = self._trails.get(first)
        if trail is not None and nodes[trail.blocks[-1]] != trail.node:
            del self._trails[first]
            return None
        return trail

    def keep(self, data: bytes, blocks: list[int], node: bytes) -> None:
        """Remember a way that was walked, if it is the second from its first block: most prompts have no company."""
        first = blocks[0]
        if first in self._trails:
            self._trails[first] = Trail(data[: len(blocks) * self._chunk_bytes], blocks.copy(), node)
            self._trails.move_to_end(first)
            return
        self._trails[first] = None
        if len(self._trails) > KEPT_TRAILS:
            self._trails.popitem(last=False)

    def common(self, trail: Trail, data: bytes) -> int:
        """How many blocks, at least the first, some tokens have in common with a way: by bisection."""
        step, old = self._chunk_bytes, trail.data
        low, high = 1, min(len(trail.blocks), len(data) // step)
        middle = high  # most often all of them
        while low < high:
            if data[low * step : middle * step] == old[low * step : middle * step]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low
