"""The prefix tree: which block holds the KV of which tokens, after which others.

A node is one block, and there are no node objects: a node is its block's number in flat columns, and every edge lives
in one dict, from (parent's identity, tokens) to block. A million blocks are then a few large objects: no memory for a
million small ones, and nothing for the garbage collector to walk. Keys are bytes, so a step down is one slice and one
look-up. Children are also kept in order, where the longest common head of a chunk is beside its place: O(log n).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from quire.cache.trails import Trails
from quire.types.request import CacheKey

TOKEN_BYTES = 4  # tokens are array("I") everywhere in the pure pillar
ROOT_BYTES = 20  # of a root's identity; a node's has 8, most of them zero, so neither can be taken for the other
NO_BLOCK = -1


def tokens_of(data: bytes) -> tuple[int, ...]:
    """The tokens in a chunk's bytes."""
    return tuple(array("I", data))


@lru_cache(maxsize=4096)
def root_of(key: CacheKey) -> bytes:
    """The identity of the node above a key's first blocks. It is computed, not stored: an unused key costs nothing."""
    return b"root" + blake2b(ascii((key.model, key.adapter, key.salt)).encode(), digest_size=ROOT_BYTES - 4).digest()


def common_head(left: bytes, right: bytes) -> int:
    """How many tokens two chunks have in common at their beginning."""
    size = min(len(left), len(right))
    differ = int.from_bytes(left[:size], "big") ^ int.from_bytes(right[:size], "big")
    return (size - (differ.bit_length() + 7) // 8) // TOKEN_BYTES


class Reach(NamedTuple):
    """How far the tree can follow some tokens."""

    blocks: list[int]  # whole blocks, from the root on
    node: bytes  # where the whole blocks end
    near: int  # the block below `node` with the longest head in common with what follows, or NO_BLOCK
    shared: int  # tokens in that head
    num_tokens: int  # in all


class PrefixTree:
    """Structure alone: it knows nothing of holds, time or eviction. A block may be removed only when it is a leaf."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._edges: dict[bytes, int] = {}  # parent's node + tokens -> block
        # node -> its children's keys, in order. Most nodes have one child: that key stands without a list around it.
        self._fans: dict[bytes, bytes | list[bytes]] = {}
        self._keys: list[bytes | None] = [None] * num_blocks  # the block's own edge; None: not in the tree
        self._nodes: list[bytes] = [b""] * num_blocks  # the block's identity while in the tree; never used again
        self._parents = array("i", [NO_BLOCK]) * num_blocks
        self._last_node = 0
        self.num_changes = 0  # blocks that came and went: while it is the same, so is every answer
        self._trails = Trails(block_tokens * TOKEN_BYTES)
        self._chunks = Struct(f"{block_tokens * TOKEN_BYTES}s")  # cuts bytes faster than slices do
        self.roots: dict[bytes, CacheKey] = {}  # those that have blocks

    def __len__(self) -> int:
        return len(self._edges)

    def __contains__(self, block: int) -> bool:
        return self._keys[block] is not None

    def node(self, block: int) -> bytes:
        """The block's identity, under which its children are found."""
        return self._nodes[block]

    def parent(self, block: int) -> int:
        """The block before this one, or NO_BLOCK if it is a first block."""
        return self._parents[block]

    def key(self, block: int) -> bytes:
        """The block's edge: its parent's identity and its tokens."""
        key = self._keys[block]
        assert key is not None, f"block {block} is not in the tree"
        return key

    def chunk(self, block: int) -> bytes:
        """The block's own tokens, as bytes."""
        return self.key(block)[len(self.above(block)) :]

    def above(self, block: int) -> bytes:
        """The node that the block hangs from: its parent's, or a root."""
        parent = self._parents[block]
        return self._nodes[parent] if parent != NO_BLOCK else self.key(block)[:ROOT_BYTES]

    def is_leaf(self, block: int) -> bool:
        """No block in the tree continues this one."""
        return self._nodes[block] not in self._fans

    def find(self, node: bytes, chunk: bytes) -> int | None:
        """The child with exactly these tokens."""
        return self._edges.get(node + chunk)

    def children(self, node: bytes) -> list[int]:
        """The blocks that continue a node, in the order of their tokens."""
        return [self._edges[key] for key in self._fan(node)]

    def reach(self, data: bytes, root: bytes, known: Sequence[int] = ()) -> Reach:
        """Follow the tokens in `data` through whole blocks, then into the block with the longest common head.

        Some blocks may be `known`: the first ones, as far as an earlier look-up of the same tokens came.
        """
        step = self.block_tokens * TOKEN_BYTES
        find, nodes = self._edges.get, self._nodes
        num_whole = len(data) // step
        blocks = list(known[:num_whole]) if known else self._begin(data, root)
        num_known = len(blocks)
        node = nodes[blocks[-1]] if blocks else root
        for (chunk,) in self._chunks.iter_unpack(data[num_known * step : num_whole * step]):
            block = find(node + chunk)
            if block is None:
                break
            blocks.append(block)
            node = nodes[block]
        if len(blocks) > num_known:
            self._trails.keep(data, blocks, node)
        end = len(blocks) * step
        near, shared = self.nearest(node, data[end : end + step])
        return Reach(blocks, node, near, shared, len(blocks) * self.block_tokens + shared)

    def _begin(self, data: bytes, root: bytes) -> list[int]:
        """The blocks that need not be looked for, because others went the same way a moment ago."""
        step = self.block_tokens * TOKEN_BYTES
        first = self._edges.get(root + data[:step]) if len(data) >= step else None
        if first is None:
            return []
        trail = self._trails.find(first, self._nodes)
        return [first] if trail is None else trail.blocks[: self._trails.common(trail, data)]

    def nearest(self, node: bytes, head: bytes) -> tuple[int, int]:
        """The child that shares the longest head with these tokens, and how many tokens that is (0: no child does)."""
        fan = self._fan(node)
        if not fan or not head:
            return NO_BLOCK, 0
        key = node + head
        at = bisect_left(fan, key)
        # In byte order the longest common beginning with `key` is beside its place, however a token is laid out.
        first = key[: len(node) + TOKEN_BYTES]
        beside = [near for near in fan[max(at - 1, 0) : at + 1] if near.startswith(first)]
        if not beside:
            return NO_BLOCK, 0
        best = max(beside, key=lambda near: common_head(near[len(node) :], head))
        return self._edges[best], common_head(best[len(node) :], head)

    def insert(self, block: int, parent: int, chunk: bytes, owner: CacheKey) -> int:
        """Put a block below its parent, or the owner's root. If these tokens are there already, answers that block."""
        node = self._nodes[parent] if parent != NO_BLOCK else root_of(owner)
        key = node + chunk
        there = self._edges.setdefault(key, block)
        if there != block:
            return there
        assert self._keys[block] is None, f"block {block} is in the tree already"
        self._last_node += 1
        self.num_changes += 1
        self._keys[block] = key
        self._nodes[block] = self._last_node.to_bytes(8, "big")
        self._parents[block] = parent
        fan = self._fans.get(node)
        if fan is None:
            self._fans[node] = key
            if parent == NO_BLOCK:
                self.roots[node] = owner
        elif isinstance(fan, bytes):
            self._fans[node] = sorted((fan, key))
        else:
            insort(fan, key)
        return block

    def remove(self, block: int) -> int:
        """Take a leaf out of the tree; answers its parent."""
        assert self.is_leaf(block), f"block {block} has children"
        key, parent, node = self.key(block), self._parents[block], self.above(block)
        del self._edges[key]
        self.num_changes += 1
        fan = self._fans[node]
        if isinstance(fan, bytes):
            del self._fans[node]
            self.roots.pop(node, None)
        else:
            del fan[bisect_left(fan, key)]
            if len(fan) == 1:
                self._fans[node] = fan[0]
        self._keys[block], self._nodes[block], self._parents[block] = None, b"", NO_BLOCK
        return parent

    def covers(self, node: bytes, chunk: bytes) -> bool:
        """Does a child begin with all of these tokens?"""
        fan, key = self._fan(node), node + chunk
        at = bisect_left(fan, key)
        return at < len(fan) and fan[at].startswith(key)

    def shorter(self, block: int) -> list[int]:
        """Siblings whose tokens this block repeats and continues: they can answer nothing that it cannot.

        They stand before it, but others may stand between: 1 | 1 1 | 1 2.
        """
        node = self.above(block)
        fan = self._fans[node]
        if isinstance(fan, bytes):
            return []
        key = self.key(block)
        at = bisect_left(fan, key)
        if not at or not fan[at - 1].startswith(key[: len(node) + TOKEN_BYTES]):
            return []
        heads = (key[:end] for end in range(len(key) - TOKEN_BYTES, len(node), -TOKEN_BYTES))
        return [self._edges[head] for head in heads if head in self._edges]

    def in_order(self) -> Iterator[tuple[int, CacheKey]]:
        """Every block and its owner, parents before children."""
        for root, owner in self.roots.items():
            waiting = self.children(root)
            while waiting:
                block = waiting.pop()
                yield block, owner
                waiting += self.children(self._nodes[block])

    def _fan(self, node: bytes) -> list[bytes]:
        fan = self._fans.get(node)
        return [] if fan is None else [fan] if isinstance(fan, bytes) else fan

    def check(self) -> None:
        """The columns, the edges and the fans tell the same story, and every chain ends at a root."""
        blocks = [block for block, key in enumerate(self._keys) if key is not None]
        assert sorted(self._edges.values()) == blocks
        assert sum(len(self._fan(node)) for node in self._fans) == len(blocks)
        for block in blocks:
            key, parent = self.key(block), self._parents[block]
            assert self._edges[key] == block
            assert parent == NO_BLOCK or key.startswith(self._nodes[parent]), f"block {block} has a lost parent"
            assert 0 < len(self.chunk(block)) <= self.block_tokens * TOKEN_BYTES
            assert self.is_leaf(block) or len(self.chunk(block)) == self.block_tokens * TOKEN_BYTES
        for node, fan in self._fans.items():
            keys = self._fan(node)
            assert keys == sorted(set(keys)) and all(key.startswith(node) and key in self._edges for key in keys)
            assert isinstance(fan, bytes) or len(fan) > 1
        assert self.roots.keys() == {node for node in self._fans if len(node) == ROOT_BYTES}
        assert len(list(self.in_order())) == len(blocks), "some blocks cannot be reached"
