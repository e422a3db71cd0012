"""What the KV cache tells the world, so that a router can keep a copy of its tree.

Every event has the next sequence number. A reader that sees a gap asks for the missed events, or, if they are too old,
for a snapshot: the `BlockStored` events that would build the present tree, parents first.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.types.request import CacheKey

ROOT = 0  # the parent of every first block


class BlockStored(NamedTuple):
    """A block can be found from now on. `node` is never used again for another block, `block` (its place) is."""

    sequence: int
    node: int
    parent: int  # the node before it, or ROOT
    block: int
    tokens: tuple[int, ...]  # fewer than a block's worth: the end of a request's context
    key: CacheKey


class BlockRemoved(NamedTuple):
    """A block can no longer be found."""

    sequence: int
    node: int


class CacheCleared(NamedTuple):
    """Nothing can be found any more."""

    sequence: int


CacheEvent = BlockStored | BlockRemoved | CacheCleared
