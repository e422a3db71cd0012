"""Checkpoints: states of recurrent layers that are kept in the tree, so that a request can resume there.

A checkpoint is a slot with the state after a prefix of the tree. It is found by the node before the block that the
prefix ends in, and the tokens of the prefix in that block: so all blocks that begin with these tokens share it, and it
is removed with the last of them. Slots are never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.cache.blocks import BlockPool
from quire.cache.history import History
from quire.cache.lease import NO_SLOT, Lease
from quire.cache.radix import NO_BLOCK, TOKEN_BYTES, PrefixTree


class CheckpointSpacing(NamedTuple):
    """Where checkpoints are made."""

    every: int = 4096  # tokens between two of a long prompt
    grain: int = 1  # a device saves states at multiples of this position


DEFAULT_SPACING = CheckpointSpacing()


class Place(NamedTuple):
    """Where a checkpoint is."""

    parent: bytes  # identity of the node before its block, or of the root
    head: bytes  # the tokens after that node
    position: int  # tokens that the state has seen
    node: int  # a block that begins with `head`: events name it


class Checkpoints:
    """The pool of state slots, and the checkpoints among them by place. Only `Columns` calls it."""

    def __init__(self, num_states: int, tree: PrefixTree, history: History, spacing: CheckpointSpacing) -> None:
        self._tree = tree
        self._history = history
        self._every, self._grain = spacing
        self._heads: dict[bytes, dict[bytes, int]] = {}  # parent -> head -> slot
        self._places: dict[int, Place] = {}
        self.pool = BlockPool(num_states, self, self._record_removed)

    @property
    def num_checkpoints(self) -> int:
        """Checkpoints in the tree."""
        return len(self._places)

    # ── the storage of the pool ──

    def __contains__(self, slot: int) -> bool:
        return slot in self._places

    def is_leaf(self, slot: int) -> bool:
        """Any checkpoint may be evicted alone."""
        return True

    def remove(self, slot: int) -> int:
        """Remove a checkpoint."""
        parent, head, _, _ = self._places.pop(slot)
        heads = self._heads[parent]
        del heads[head]
        if not heads:
            del self._heads[parent]
        self._tree.num_changes += 1
        return NO_BLOCK

    def _record_removed(self, slot: int, now: float) -> None:
        place = self._places[slot]
        self._history.record_checkpoint_removed(self._tree.node(place.node), place.position)

    # ── checkpoints ──

    def nearest(self, path: Sequence[int], at: int) -> tuple[int, int]:
        """Return the last position, up to `at`, with a checkpoint on the path, and its slot. (0, NO_SLOT): none."""
        if not self._heads:
            return 0, NO_SLOT
        size, tree, find = self._tree.block_tokens, self._tree, self._heads.get
        for place in range((at - 1) // size, -1, -1):
            node = path[place]
            heads = find(tree.node(path[place - 1]) if place else tree.parent_node(node))
            if heads is None:
                continue
            chunk = tree.chunk(node)[: (at - place * size) * TOKEN_BYTES]
            head = max((head for head in heads if chunk.startswith(head)), key=len, default=b"")
            if head:
                return place * size + len(head) // TOKEN_BYTES, heads[head]
        return 0, NO_SLOT

    def store(self, node: int, position: int, slot: int) -> bool:
        """Keep a slot as the state after the first `position` tokens; `node` is the block of the last of them.

        False: there is a checkpoint already.
        """
        tree = self._tree
        num_tokens = (position - 1) % tree.block_tokens + 1
        head, parent = tree.chunk(node)[: num_tokens * TOKEN_BYTES], tree.parent_node(node)
        heads = self._heads.setdefault(parent, {})
        if heads.setdefault(head, slot) != slot:
            return False
        self._places[slot] = Place(parent, head, position, node)
        tree.num_changes += 1
        self._history.record_checkpoint_stored(tree.node(node), position)
        return True

    def record_stored(self, node: int) -> None:
        """Record the checkpoints that events name by this node."""
        for slot in self.inside(node):
            if self._places[slot].node == node:
                self._history.record_checkpoint_stored(self._tree.node(node), self._places[slot].position)

    def drop(self, node: int) -> None:
        """Free the checkpoints in a block that is removed from the tree, but for those that other blocks share."""
        heads = self._heads.get(self._tree.parent_node(node))
        if heads is None:
            return
        for slot in self.inside(node):
            place = self._places[slot]
            others = self._tree.siblings_with_head(node, len(place.head) // TOKEN_BYTES)
            if not others:
                self.remove(slot)
                self.pool.mark_removed(slot)
            elif place.node == node:
                self._places[slot] = place._replace(node=others[0])
                self._history.record_checkpoint_stored(self._tree.node(others[0]), place.position)

    def inside(self, node: int) -> list[int]:
        """Return the slots of the checkpoints in a block."""
        heads = self._heads.get(self._tree.parent_node(node), {})
        chunk = self._tree.chunk(node)
        return [slot for head, slot in heads.items() if chunk.startswith(head)]

    def places(self) -> list[tuple[int, int]]:
        """Return node and position of every checkpoint, as events name them."""
        tree = self._tree
        return [(int.from_bytes(tree.node(place.node), "big"), place.position) for place in self._places.values()]

    def clear(self) -> None:
        """Remove all checkpoints."""
        for slot in list(self._places):
            self.remove(slot)
            self.pool.mark_removed(slot)

    # ── wishes ──

    def wishes(self, start: int, depth: int, num_tokens: int) -> list[int]:
        """Return where a request that computes the tokens from `start` to `num_tokens` makes checkpoints.

        Before its last token, which is always computed for its logits; where it leaves the tree, since other requests
        may leave it there too; and at regular distances.
        """
        regular = range(-(-(start + 1) // self._every) * self._every, num_tokens, self._every)
        wishes = {position - position % self._grain for position in (num_tokens - 1, depth, *regular)}
        return sorted(position for position in wishes if position > start)

    def want(self, lease: Lease, position: int) -> bool:
        """Want a checkpoint at a position, or the last one before it that can be saved. Return whether one is made."""
        state = lease.state
        assert state is not None
        position -= position % self._grain
        if any(position == saved for saved, _ in state.saved) or position in state.wanted:
            return True
        if position <= state.planned or lease.is_private:
            return False
        state.wanted = sorted([*state.wanted, position])
        for window in lease.windows:
            window.resume_points += (position,)
        return True

    def take_saves(self, lease: Lease, start: int, end: int, now: float) -> list[tuple[int, int]]:
        """Return (position, slot) for wanted positions after `start`, up to `end`. Without a slot one is left out."""
        state = lease.state
        assert state is not None
        state.planned = end
        if not state.wanted or state.wanted[0] > end or lease.is_private:
            return []
        due = [position for position in state.wanted if position <= end]
        state.wanted = state.wanted[len(due) :]
        saves = []
        for position in due:
            slots = self.pool.take(1, now) if position > start else None
            if slots is not None:
                saves.append((position, slots[0]))
        state.saved += saves
        return saves

    # ── drafts ──

    def branch(self, lease: Lease, now: float) -> int | None:
        """Take a second slot beside the live one. None: all slots are held."""
        assert lease.state is not None and lease.state.branch == NO_SLOT, "the last branch was not settled"
        slots = self.pool.take(1, now)
        if slots is None:
            return None
        lease.state.branch = slots[0]
        return slots[0]

    def settle(self, lease: Lease, keeps_new: bool, now: float) -> None:
        """Keep one of the two slots as the live one, and release the other."""
        state = lease.state
        assert state is not None and state.branch != NO_SLOT, "there is no branch"
        old, state.target = (state.target, state.branch) if keeps_new else (state.branch, state.target)
        state.branch = NO_SLOT
        self.pool.release((old,), now)

    def check(self, holds: dict[int, int]) -> None:
        """Assert that places and pool agree, and that every checkpoint is in a block of the tree."""
        assert sum(map(len, self._heads.values())) == len(self._places) and all(self._heads.values())
        for slot, place in self._places.items():
            assert self._heads[place.parent][place.head] == slot
            assert place.node in self._tree and self._tree.parent_node(place.node) == place.parent
            assert self._tree.chunk(place.node).startswith(place.head)
        self.pool.check(holds)
