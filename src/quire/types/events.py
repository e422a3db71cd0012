"""Events of the KV cache, from which a router can maintain a copy of its tree.

Events are numbered in sequence. A reader that sees a gap requests the missed events, or, if they are too old, a
snapshot: the events that build the present tree, parents first.

A model may have groups of layers beside those that read all tokens. A node then has more than its block of group 0: at
most one block of each window group, and checkpoints of the state. They are removed with the node, or before it.

A node also has a digest (`types/digests.py`), the same on every engine: by it an index of many engines knows the node.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.types.request import CacheKey

ROOT = 0  # the parent of every first block


class BlockStored(NamedTuple):
    """A block was added to the tree, or to a node of it. `node` is never reused for another block; `block` is."""

    sequence: int
    node: int
    parent: int  # the node before it, or ROOT
    block: int
    tokens: tuple[int, ...]  # fewer than a block holds: the end of a context, or the head before a checkpoint
    key: CacheKey
    group: int = 0  # 0: all tokens, and the node itself; from 1 on: window groups
    digest: bytes = b""  # of the node; of group 0 alone
    parent_digest: bytes = b""  # of the node before it, or of the root


class BlockRemoved(NamedTuple):
    """A block was removed: of group 0, the node with all that belongs to it; of a window group, that block alone."""

    sequence: int
    node: int
    group: int = 0
    digest: bytes = b""  # of the node; of group 0 alone


class CheckpointStored(NamedTuple):
    """The state after `position` tokens is kept; the last of them is in this node. It may move from node to node."""

    sequence: int
    node: int
    position: int


class CheckpointRemoved(NamedTuple):
    """A checkpoint was removed."""

    sequence: int
    node: int
    position: int


class CacheCleared(NamedTuple):
    """All blocks were removed from the tree."""

    sequence: int


CacheEvent = BlockStored | BlockRemoved | CheckpointStored | CheckpointRemoved | CacheCleared
