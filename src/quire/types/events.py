"""Events of the KV cache, from which a router can maintain a copy of its tree.

Events are numbered in sequence. A reader that sees a gap requests the missed events, or, if they are too old, a
snapshot: the `BlockStored` events that build the present tree, parents first.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.types.request import CacheKey

ROOT = 0  # the parent of every first block


class BlockStored(NamedTuple):
    """A block was added to the tree. `node` is never reused for another block; `block` (its place) is."""

    sequence: int
    node: int
    parent: int  # the node before it, or ROOT
    block: int
    tokens: tuple[int, ...]  # fewer than a block holds: the end of a request's context
    key: CacheKey


class BlockRemoved(NamedTuple):
    """A block was removed from the tree."""

    sequence: int
    node: int


class CacheCleared(NamedTuple):
    """All blocks were removed from the tree."""

    sequence: int


CacheEvent = BlockStored | BlockRemoved | CacheCleared
