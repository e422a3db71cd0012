"""The prefix tree: maps token prefixes to the blocks that hold their KV.

A node is one block, and there are no node objects: a node is its block's number in flat columns, and every edge is in
one dict, from (parent's identity, tokens) to block. A million blocks are then a few large objects instead of a million
small ones, and the garbage collector has nothing to traverse. Keys are bytes, so a step down is one slice and one
lookup. Children are also kept sorted, so that the child with the longest common head is found in O(log n).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice, takewhile
from struct import Struct
from typing import NamedTuple

from quire.cache.recent_paths import RecentPaths
from quire.types.request import CacheKey

TOKEN_BYTES = 4  # tokens are array("I") everywhere in the pure pillar
ROOT_BYTES = 20  # size of a root's identity; a node's has 8 bytes, most of them zero, so the two never collide
NO_BLOCK = -1
MAX_COMPARED = 64  # children that are compared for the newest one


def tokens_of(data: bytes) -> tuple[int, ...]:
    """Return the tokens in a chunk's bytes."""
    return tuple(array("I", data))


@lru_cache(maxsize=4096)
def root_of(key: CacheKey) -> bytes:
    """Return the identity of the node above a key's first blocks. Computed, not stored: an unused key costs nothing."""
    return (
        b"root"
        + blake2b(ascii((key.model, key.adapter, key.salt, key.source)).encode(), digest_size=ROOT_BYTES - 4).digest()
    )


def common_head(left: bytes, right: bytes) -> int:
    """Return how many tokens two chunks have in common at their beginning."""
    size = min(len(left), len(right))
    differ = int.from_bytes(left[:size], "big") ^ int.from_bytes(right[:size], "big")
    return (size - (differ.bit_length() + 7) // 8) // TOKEN_BYTES


class TreeMatch(NamedTuple):
    """The longest prefix of some tokens in the tree: whole blocks, then the head of one more."""

    blocks: list[int]  # whole blocks, from the root on
    node: bytes  # identity of the last whole block, or the root
    partial_block: int  # the child of `node` with the longest head in common with the next tokens, or NO_BLOCK
    num_partial: int  # tokens in that head
    num_tokens: int  # in whole blocks and head

    @property
    def all_blocks(self) -> list[int]:
        """The whole blocks, and the partial one if there is one."""
        return [*self.blocks, self.partial_block] if self.num_partial else self.blocks


class PrefixTree:
    """The structure alone, without holds, time or eviction. Only a leaf may be removed."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._edges: dict[bytes, int] = {}  # parent's node + tokens -> block
        # node -> its children's keys, sorted. Most nodes have one child: its key is stored without a list.
        self._children: dict[bytes, bytes | list[bytes]] = {}
        self._keys: list[bytes | None] = [None] * num_blocks  # the block's edge; None: not in the tree
        self._nodes: list[bytes] = [b""] * num_blocks  # the block's identity while in the tree; never reused
        self._parents = array("i", [NO_BLOCK]) * num_blocks
        self._last_node = 0
        self.num_changes = 0  # insertions and removals, in columns too: while it is the same, so is every match
        self._recent_paths = RecentPaths(block_tokens * TOKEN_BYTES)
        self._chunks = Struct(f"{block_tokens * TOKEN_BYTES}s")  # splits bytes faster than slicing
        self.roots: dict[bytes, CacheKey] = {}  # with blocks

    def __len__(self) -> int:
        return len(self._edges)

    def __contains__(self, block: int) -> bool:
        return self._keys[block] is not None

    def node(self, block: int) -> bytes:
        """Return the block's identity, which its children's keys begin with."""
        return self._nodes[block]

    def parent(self, block: int) -> int:
        """Return the block before this one, or NO_BLOCK for a first block."""
        return self._parents[block]

    def key(self, block: int) -> bytes:
        """Return the block's edge: its parent's identity and its tokens."""
        key = self._keys[block]
        assert key is not None, f"block {block} is not in the tree"
        return key

    def chunk(self, block: int) -> bytes:
        """Return the block's tokens, as bytes."""
        return self.key(block)[len(self.parent_node(block)) :]

    def parent_node(self, block: int) -> bytes:
        """Return the identity of the block's parent, or of its root."""
        parent = self._parents[block]
        return self._nodes[parent] if parent != NO_BLOCK else self.key(block)[:ROOT_BYTES]

    def parent_identity(self, block: int) -> bytes:
        """Return the identity of the block's parent; empty for a first block."""
        parent = self._parents[block]
        return self._nodes[parent] if parent != NO_BLOCK else b""

    def is_leaf(self, block: int) -> bool:
        """Has the block no children?"""
        return self._nodes[block] not in self._children

    def children(self, node: bytes) -> list[int]:
        """Return a node's child blocks, sorted by their tokens."""
        return [self._edges[key] for key in self._child_keys(node)]

    def match(self, data: bytes, root: bytes, known: Sequence[int] = ()) -> TreeMatch:
        """Return the longest prefix of the tokens in `data`: whole blocks, then the head of one more.

        `known`: the first blocks, from an earlier match of the same tokens.
        """
        size = self.block_tokens * TOKEN_BYTES
        find, nodes = self._edges.get, self._nodes
        num_whole = len(data) // size
        blocks = list(known[:num_whole]) if known else self._match_recent(data, root)
        num_known = len(blocks)
        node = nodes[blocks[-1]] if blocks else root
        for (chunk,) in self._chunks.iter_unpack(data[num_known * size : num_whole * size]):
            block = find(node + chunk)
            if block is None:
                break
            blocks.append(block)
            node = nodes[block]
        if len(blocks) > num_known:
            self._recent_paths.record(data, blocks, node)
        end = len(blocks) * size
        partial_block, num_partial = self._match_partial(node, data[end : end + size])
        return TreeMatch(blocks, node, partial_block, num_partial, len(blocks) * self.block_tokens + num_partial)

    def _match_recent(self, data: bytes, root: bytes) -> list[int]:
        """Return the blocks that these tokens have in common with a recently matched path."""
        size = self.block_tokens * TOKEN_BYTES
        first = self._edges.get(root + data[:size]) if len(data) >= size else None
        if first is None:
            return []
        path = self._recent_paths.find(first, self._nodes)
        return [first] if path is None else path.blocks[: self._recent_paths.num_common_blocks(path, data)]

    def _match_partial(self, node: bytes, head: bytes) -> tuple[int, int]:
        """Return the child with the longest head in common with these tokens, and the tokens in it (0: no child)."""
        keys = self._child_keys(node)
        if not keys or not head:
            return NO_BLOCK, 0
        key = node + head
        at = bisect_left(keys, key)
        # In byte order the longest common beginning with `key` is next to its place, whatever a token's byte order.
        first = key[: len(node) + TOKEN_BYTES]
        neighbours = [each for each in keys[max(at - 1, 0) : at + 1] if each.startswith(first)]
        if not neighbours:
            return NO_BLOCK, 0
        best = max(neighbours, key=lambda each: common_head(each[len(node) :], head))
        return self._edges[best], common_head(best[len(node) :], head)

    def insert(self, block: int, parent: int, chunk: bytes, owner: CacheKey) -> int:
        """Insert a block below its parent or the owner's root. Return it, or an existing block with these tokens."""
        node = self._nodes[parent] if parent != NO_BLOCK else root_of(owner)
        key = node + chunk
        existing = self._edges.setdefault(key, block)
        if existing != block:
            return existing
        assert self._keys[block] is None, f"block {block} is in the tree already"
        self._last_node += 1
        self.num_changes += 1
        self._keys[block] = key
        self._nodes[block] = self._last_node.to_bytes(8, "big")
        self._parents[block] = parent
        keys = self._children.get(node)
        if keys is None:
            self._children[node] = key
            if parent == NO_BLOCK:
                self.roots[node] = owner
        elif isinstance(keys, bytes):
            self._children[node] = sorted((keys, key))
        else:
            insort(keys, key)
        return block

    def remove(self, block: int) -> int:
        """Remove a leaf; return its parent."""
        assert self.is_leaf(block), f"block {block} has children"
        key, parent, node = self.key(block), self._parents[block], self.parent_node(block)
        del self._edges[key]
        self.num_changes += 1
        keys = self._children[node]
        if isinstance(keys, bytes):
            del self._children[node]
            self.roots.pop(node, None)
        else:
            del keys[bisect_left(keys, key)]
            if len(keys) == 1:
                self._children[node] = keys[0]
        self._keys[block], self._nodes[block], self._parents[block] = None, b"", NO_BLOCK
        return parent

    def find(self, key: bytes) -> int:
        """Return the block at an edge, or NO_BLOCK."""
        return self._edges.get(key, NO_BLOCK)

    def child_with_head(self, node: bytes, chunk: bytes) -> int:
        """Return a child of the node that begins with all of these tokens, or NO_BLOCK."""
        keys, key = self._child_keys(node), node + chunk
        at = bisect_left(keys, key)
        return self._edges[keys[at]] if at < len(keys) and keys[at].startswith(key) else NO_BLOCK

    def continuation(self, path: Sequence[int], root: bytes, tokens: array[int], limit: int) -> array[int]:
        """Return up to `limit` tokens that follow these, whose first blocks are `path`: of several, the newest."""
        size, found = self.block_tokens * TOKEN_BYTES, array("I")
        node = self._nodes[path[-1]] if path else root
        head = tokens[len(path) * self.block_tokens :].tobytes()
        while len(head) >= size:
            block = self._edges.get(node + head[:size])
            if block is None:
                return found
            node, head = self._nodes[block], head[size:]
        while len(found) < limit:
            block = self._newest_longer_child(node, head)
            if block == NO_BLOCK:
                break
            found.frombytes(self.chunk(block)[len(head) :])
            node, head = self._nodes[block], b""
        return found[:limit]

    def _newest_longer_child(self, node: bytes, chunk: bytes) -> int:
        """Return the newest child that begins with these tokens and has more, of the first few; or NO_BLOCK."""
        keys, key = self._child_keys(node), node + chunk
        at = bisect_left(keys, key)
        similar = takewhile(lambda each: each.startswith(key), keys[at : at + MAX_COMPARED])
        longer = (self._edges[each] for each in similar if len(each) > len(key))
        return max(longer, default=NO_BLOCK, key=self.node)

    def siblings_with_head(self, block: int, num_tokens: int) -> list[int]:
        """Return the siblings that begin with the block's first `num_tokens` tokens."""
        node = self.parent_node(block)
        head = self.key(block)[: len(node) + num_tokens * TOKEN_BYTES]
        keys = self._child_keys(node)
        similar = takewhile(lambda key: key.startswith(head), islice(keys, bisect_left(keys, head), None))
        return [each for key in similar if (each := self._edges[key]) != block]

    def shorter_siblings(self, block: int) -> list[int]:
        """Return the siblings whose tokens this block begins with: they are redundant.

        They sort before it, but not always next to it: 1 | 1 1 | 1 2.
        """
        node = self.parent_node(block)
        keys = self._children[node]
        if isinstance(keys, bytes):
            return []
        key = self.key(block)
        at = bisect_left(keys, key)
        if not at or not keys[at - 1].startswith(key[: len(node) + TOKEN_BYTES]):
            return []
        heads = (key[:end] for end in range(len(key) - TOKEN_BYTES, len(node), -TOKEN_BYTES))
        return [self._edges[head] for head in heads if head in self._edges]

    def subtree(self, block: int) -> list[int]:
        """Return a block and all its descendants, parents before children."""
        blocks = [block]
        for each in blocks:
            blocks += self.children(self._nodes[each])
        return blocks

    def in_order(self) -> Iterator[tuple[int, CacheKey]]:
        """Yield every block and its owner, parents before children."""
        for root, owner in self.roots.items():
            stack = self.children(root)
            while stack:
                block = stack.pop()
                yield block, owner
                stack += self.children(self._nodes[block])

    def _child_keys(self, node: bytes) -> list[bytes]:
        keys = self._children.get(node)
        return [] if keys is None else [keys] if isinstance(keys, bytes) else keys

    def check(self) -> None:
        """Assert that columns, edges and children agree, and that every path ends at a root."""
        blocks = [block for block, key in enumerate(self._keys) if key is not None]
        assert sorted(self._edges.values()) == blocks
        assert sum(len(self._child_keys(node)) for node in self._children) == len(blocks)
        for block in blocks:
            key, parent = self.key(block), self._parents[block]
            assert self._edges[key] == block
            assert parent == NO_BLOCK or key.startswith(self._nodes[parent]), f"block {block} has another parent"
            assert 0 < len(self.chunk(block)) <= self.block_tokens * TOKEN_BYTES
            assert self.is_leaf(block) or len(self.chunk(block)) == self.block_tokens * TOKEN_BYTES
        for node, stored in self._children.items():
            keys = self._child_keys(node)
            assert keys == sorted(set(keys)) and all(key.startswith(node) and key in self._edges for key in keys)
            assert isinstance(stored, bytes) or len(stored) > 1
        assert self.roots.keys() == {node for node in self._children if len(node) == ROOT_BYTES}
        assert len(list(self.in_order())) == len(blocks), "some blocks are not reachable from a root"
