"""Recently matched paths of the prefix tree.

Requests that arrive together often begin alike: the same instructions, the same document, the same examples. The first
of them finds its blocks one by one; for the others, a few comparisons of bytes give the length of the common path.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MAX_PATHS = 16


class RecentPath(NamedTuple):
    """A path from a root to a node. Valid as long as its last block has that identity."""

    data: bytes  # the tokens of its blocks
    blocks: list[int]
    node: bytes  # the identity of its last block


class RecentPaths:
    """The newest path below each of the most recently used first blocks. Only `PrefixTree` calls it."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._paths: OrderedDict[int, RecentPath | None] = OrderedDict()  # by first block; None: matched once

    def find(self, first: int, nodes: list[bytes]) -> RecentPath | None:
        """Return the path that begins with this block, if it is still in the tree."""
        path = self._paths.get(first)
        if path is not None and nodes[path.blocks[-1]] != path.node:
            del self._paths[first]
            return None
        return path

    def record(self, data: bytes, blocks: list[int], node: bytes) -> None:
        """Record a matched path from the second match of its first block on: most prompts share none."""
        first = blocks[0]
        if first in self._paths:
            self._paths[first] = RecentPath(data[: len(blocks) * self._chunk_bytes], blocks.copy(), node)
            self._paths.move_to_end(first)
            return
        self._paths[first] = None
        if len(self._paths) > MAX_PATHS:
            self._paths.popitem(last=False)

    def num_common_blocks(self, path: RecentPath, data: bytes) -> int:
        """Return how many blocks, at least the first, these tokens have in common with a path, by bisection."""
        size, path_data = self._chunk_bytes, path.data
        low, high = 1, min(len(path.blocks), len(data) // size)
        middle = high  # most often all are common
        while low < high:
            if data[low * size : middle * size] == path_data[low * size : middle * size]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low
