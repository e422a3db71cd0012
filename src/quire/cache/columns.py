"""The groups beside the blocks of all tokens: window blocks and states, as columns beside the nodes of the tree.

A request can resume at a position if the tree has its tokens, the blocks of every window before it, and, for a model
with states, a checkpoint exactly there. A model with one group has no columns, and none of this code runs for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire.cache.blocks import BlockPool
from quire.cache.checkpoints import Checkpoints
from quire.cache.lease import NO_SLOT, Hit, Lease, StateLease, WindowLease
from quire.cache.radix import NO_BLOCK, PrefixTree
from quire.cache.stats import ColumnStats
from quire.cache.windows import WindowColumn
from quire.types.events import CacheEvent, CheckpointStored
from quire.types.request import CacheKey, Pin
from quire.types.step import CopyBlock

Need = tuple[BlockPool, int]  # how many blocks must be available in a pool


class Held(NamedTuple):
    """What a session holds of the columns."""

    windows: tuple[tuple[int, ...], ...] = ()  # blocks of each window group
    state: int = NO_SLOT


class Columns:
    """Window groups and checkpoints. Only the cache and its parts call it."""

    def __init__(
        self,
        tree: PrefixTree,
        nodes: BlockPool,
        windows: tuple[WindowColumn, ...],
        states: Checkpoints | None,
        every: int,
    ) -> None:
        self._every = every  # tokens between two positions of a long text where it can be resumed
        self._tree = tree
        self._nodes = nodes
        self.windows = windows
        self.states = states

    # ── resuming ──

    def resume(self, path: Sequence[int], depth: int) -> int:
        """Return the last position, up to `depth`, at which a request on this path can resume in every group."""
        at, checked = depth, -1
        while at != checked:
            checked = at
            for group in self.windows:
                at = group.resume(path, at)
            if self.states is not None:
                at = self.states.nearest(path, at)[0]
        return at

    def resumable(self, hit: Hit) -> Hit:
        """Return the longest part of a hit at which every group can resume."""
        path = hit.blocks if hit.source == NO_BLOCK else [*hit.blocks, hit.source]
        return self.shortened(hit, self.resume(path, hit.num_tokens))

    def shortened(self, hit: Hit, num_tokens: int) -> Hit:
        """Return the first `num_tokens` tokens of a hit, at which every group can resume."""
        place, rest = divmod(num_tokens, self._tree.block_tokens)
        path = hit.blocks if hit.source == NO_BLOCK else [*hit.blocks, hit.source]
        state, sources = self.sources(path, num_tokens)
        source = path[place] if rest else NO_BLOCK
        return hit._replace(
            blocks=path[:place], num_tokens=num_tokens, source=source, state=state, window_sources=sources
        )

    def sources(self, path: Sequence[int], at: int) -> tuple[int, tuple[int, ...]]:
        """Return the state slot and, for each window group, the block whose head is copied, to resume at `at`."""
        state = self.states.nearest(path, at)[1] if self.states is not None else NO_SLOT
        if at % self._tree.block_tokens:
            return state, tuple(group.head_block(path, at) for group in self.windows)
        return state, (NO_BLOCK,) * len(self.windows)

    def held_at(self, path: Sequence[int], depth: int) -> Held:
        """Return what a later request needs to resume on this path, as far as possible."""
        at = self.resume(path, depth)
        state, sources = self.sources(path, at)
        windows = [group.held_blocks(path, at) for group in self.windows]
        for blocks, source in zip(windows, sources, strict=True):
            blocks += [source] if source != NO_BLOCK else []
        return Held(tuple(map(tuple, windows)), state)

    def needs_to_start(self, hit: Hit, num_tokens: int) -> list[Need]:
        """Return what must be available for a lease on a hit whose first step computes up to `num_tokens` tokens."""
        size, needs = self._tree.block_tokens, list[Need]()
        for group, source in zip(self.windows, hit.window_sources or self._no_sources(), strict=True):
            shared = group.held_blocks(hit.blocks, hit.num_tokens) + ([source] if source != NO_BLOCK else [])
            num_new = max(-(-num_tokens // size), -(-hit.num_tokens // size)) - hit.num_tokens // size
            needs.append((group.pool, _num_unheld(group.pool, shared) + num_new))
        if self.states is not None:
            shared = [hit.state] if hit.state != NO_SLOT else []
            needs.append((self.states.pool, _num_unheld(self.states.pool, shared) + 1))
        return needs

    # ── leases ──

    def start(self, lease: Lease, hit: Hit, now: float) -> None:
        """Hold what a hit needs and take what its copies and its state are written to. There must be room for it."""
        place, rest = divmod(hit.num_tokens, self._tree.block_tokens)
        for group, source in zip(self.windows, hit.window_sources or self._no_sources(), strict=True):
            first, shared = group.first_place(hit.num_tokens), group.held_blocks(hit.blocks, hit.num_tokens)
            group.pool.hold(shared, now)
            lease.windows.append(WindowLease([NO_BLOCK] * (place - len(shared)) + shared, first, place, first))
            if rest:
                self._copy_head(group, lease.windows[-1], source, rest, now)
        if self.states is not None:
            self._start_state(lease, hit.state, hit.num_tokens, hit.depth, now)
        points = (hit.num_tokens, hit.depth, lease.num_known - 1, lease.num_known)
        for window in lease.windows:
            window.resume_points = points if lease.state is None else (*points, *lease.state.wanted)

    def _start_state(self, lease: Lease, source: int, start: int, depth: int, now: float) -> None:
        assert self.states is not None
        if source != NO_SLOT:
            self.states.pool.hold((source,), now)
        target = self.states.pool.take(1, now)
        assert target is not None, "no state slot is free: can_start must be called first"
        wanted = self.states.wishes(start, depth, lease.num_known)
        lease.state = StateLease(source, target[0], wanted, start)

    def can_fork(self, lease: Lease, num_tokens: int) -> bool:
        """Are all window blocks before `num_tokens` held by the lease or cached? A state cannot be forked."""
        return self.states is None and all(
            NO_BLOCK not in self._forked_blocks(group, window, lease, num_tokens)
            for group, window in zip(self.windows, lease.windows, strict=True)
        )

    def needs_to_fork(self, lease: Lease, num_tokens: int) -> list[Need]:
        """Return what must be available for a fork: a block for each copy, and the cached blocks it holds."""
        rest = bool(num_tokens % self._tree.block_tokens)
        return [
            (group.pool, rest + _num_unheld(group.pool, self._forked_blocks(group, window, lease, num_tokens)))
            for group, window in zip(self.windows, lease.windows, strict=True)
        ]

    def fork(self, lease: Lease, fork: Lease, num_tokens: int, now: float) -> None:
        """Let a fork share the window blocks of the first `num_tokens` tokens."""
        place, rest = divmod(num_tokens, self._tree.block_tokens)
        for group, window in zip(self.windows, lease.windows, strict=True):
            shared, first = self._forked_blocks(group, window, lease, num_tokens), group.first_place(num_tokens)
            source = shared.pop() if rest else NO_BLOCK
            group.pool.hold(shared, now)
            num_stored = min(place, window.num_stored)
            blocks = [NO_BLOCK] * (place - len(shared)) + shared
            fork.windows.append(WindowLease(blocks, first, num_stored, first, (num_tokens,)))
            if rest:
                self._copy_head(group, fork.windows[-1], source, rest, now)

    def _forked_blocks(self, group: WindowColumn, window: WindowLease, lease: Lease, num_tokens: int) -> list[int]:
        """Return the window's blocks before `num_tokens`, the last one partly filled; NO_BLOCK where there is none."""
        first, end = group.first_place(num_tokens), -(-num_tokens // self._tree.block_tokens)
        return [self._forked_block(group, window, lease, place) for place in range(first, end)]

    def _forked_block(self, group: WindowColumn, window: WindowLease, lease: Lease, place: int) -> int:
        if place >= window.first:
            return window.blocks[place]
        return NO_BLOCK if lease.is_private or place >= len(lease.path) else group.block_of(lease.path[place])

    def _copy_head(self, group: WindowColumn, window: WindowLease, source: int, num_tokens: int, now: float) -> None:
        group.pool.hold((source,), now)
        target = group.pool.take(1, now)
        assert target is not None, "no window block is free: can_start must be called first"
        window.blocks += target
        window.copy = CopyBlock(source, target[0], num_tokens)

    def release_passed(self, lease: Lease, computed: int, now: float) -> None:
        """Release the window blocks that no query from `computed` on reads."""
        for group, window in zip(self.windows, lease.windows, strict=True):
            first = min(group.first_place(computed), window.num_stored if not lease.is_private else len(window.blocks))
            if first > window.first:
                group.release(window, first, self._every, now)

    def needs_to_extend(self, lease: Lease, num_blocks: int) -> list[Need]:
        """Return how many blocks each window group adds until the lease has `num_blocks`."""
        return [
            (group.pool, max(0, num_blocks - len(window.blocks)))
            for group, window in zip(self.windows, lease.windows, strict=True)
        ]

    def extend(self, lease: Lease, num_blocks: int, now: float) -> None:
        """Add window blocks until the lease has `num_blocks` places. They must be available."""
        for group, window in zip(self.windows, lease.windows, strict=True):
            blocks = group.pool.take(max(0, num_blocks - len(window.blocks)), now)
            assert blocks is not None
            window.blocks += blocks

    def release_sources(self, lease: Lease, now: float) -> None:
        """Release what the first step of a lease read: that step is over."""
        for group, window in zip(self.windows, lease.windows, strict=True):
            if window.copy is not None:
                group.pool.release((window.copy.source,), now)
                window.copy = None
        if lease.state is not None and lease.state.source != NO_SLOT:
            assert self.states is not None
            self.states.pool.release((lease.state.source,), now)
            lease.state.source = NO_SLOT

    def store_promised(self, lease: Lease, first: int, now: float) -> None:
        """Add the window blocks of new nodes, from place `first` on, to the tree."""
        for place in range(first, len(lease.path)):
            if lease.path[place] == lease.blocks[place]:
                for group, window in zip(self.windows, lease.windows, strict=True):
                    if place >= window.first:
                        self._store_block(group, lease, lease.path[place], window.blocks[place], place, now)

    def store(self, lease: Lease, nodes: Sequence[int], computed: int, now: float) -> None:
        """Add the lease's computed window blocks and states to the tree. `nodes`: its path, and perhaps its tail."""
        if lease.is_private:
            return
        num_whole = min(computed // self._tree.block_tokens, len(nodes))
        for group, window in zip(self.windows, lease.windows, strict=True):
            for place in range(max(window.num_stored, window.first), num_whole):
                self._store_block(group, lease, nodes[place], window.blocks[place], place, now)
            window.num_stored = max(window.num_stored, num_whole)
        if lease.state is not None and lease.state.saved:
            most = min(computed, len(nodes) * self._tree.block_tokens)
            due = [save for save in lease.state.saved if save[0] <= most]
            lease.state.saved = [save for save in lease.state.saved if save[0] > most]
            for position, slot in due:
                self._store_state(nodes, position, slot, now)

    def store_tail(self, lease: Lease, node: int, now: float) -> None:
        """Add the window blocks of a partly filled last block, whose node has exactly its tokens."""
        place = len(lease.path)
        for group, window in zip(self.windows, lease.windows, strict=True):
            if window.first <= place < len(window.blocks):
                self._store_block(group, lease, node, window.blocks[place], place, now)

    def record_again(self, node: int, owner: CacheKey) -> None:
        """Record all that belongs to a node, which has got more tokens and another identity."""
        for group in self.windows:
            group.record_stored(node, owner)
        if self.states is not None:
            self.states.record_stored(node)

    def end(self, lease: Lease, nodes: Sequence[int], computed: int, state_at: int | None, now: float) -> None:
        """Give the live state to the tree if its position is computed, and release all that the lease holds."""
        self.store(lease, nodes, computed, now)
        state = lease.state
        if state is not None:
            assert self.states is not None
            if state_at is not None and 0 < state_at <= computed and not lease.is_private:
                self._store_state(nodes, state_at, state.target, now)
                state.target = NO_SLOT
            self.states.pool.release(state.slots(), now)
        for group, window in zip(self.windows, lease.windows, strict=True):
            window.resume_points += (computed,)
            group.release(window, len(window.blocks), self._every, now)

    def _store_block(self, group: WindowColumn, lease: Lease, node: int, block: int, place: int, now: float) -> None:
        if group.store(node, block, lease.key):
            for pin in lease.pins:
                group.pin(node, pin, place * self._tree.block_tokens, now)

    def _store_state(self, nodes: Sequence[int], position: int, slot: int, now: float) -> None:
        """Store a checkpoint with the pin of its node, and release its slot."""
        assert self.states is not None
        place = (position - 1) // self._tree.block_tokens
        if place < len(nodes) and self.states.store(nodes[place], position, slot) and self._nodes.pin_of(nodes[place]):
            self.states.pool.pin(slot, self._nodes.pin_of(nodes[place]), self._nodes.ttl_of(nodes[place]), now)
        self.states.pool.release((slot,), now)

    # ── sessions, pins, removal ──

    def hold(self, held: Held, now: float) -> None:
        """Hold what a session needs."""
        for group, blocks in zip(self.windows, held.windows, strict=True):
            group.pool.hold(blocks, now)
        if held.state != NO_SLOT:
            assert self.states is not None
            self.states.pool.hold((held.state,), now)

    def release(self, held: Held, now: float) -> None:
        """Release what a session held."""
        for group, blocks in zip(self.windows, held.windows, strict=True):
            group.pool.release(reversed(blocks), now)
        if held.state != NO_SLOT:
            assert self.states is not None
            self.states.pool.release((held.state,), now)

    def pin(self, node: int, pin: Pin, begin: int, now: float) -> None:
        """Pin what belongs to a node, whose first token is at `begin`."""
        for group in self.windows:
            group.pin(node, pin, begin, now)
        if self.states is not None:
            for slot in self.states.inside(node):
                if pin.rank >= self.states.pool.pin_of(slot):
                    self.states.pool.pin(slot, pin.rank, pin.ttl, now)

    def unpin(self, node: int, now: float) -> None:
        """Remove the pins of what belongs to a node."""
        for group in self.windows:
            group.unpin(node, now)
        if self.states is not None:
            for slot in self.states.inside(node):
                self.states.pool.pin(slot, 0, None, now)

    def drop(self, node: int) -> None:
        """Free what belongs to a node that is about to be removed from the tree."""
        for group in self.windows:
            group.drop(node)
        if self.states is not None:
            self.states.drop(node)

    def clear(self, nodes: Iterable[int]) -> None:
        """Free what belongs to all nodes."""
        for group in self.windows:
            for node in nodes:
                group.drop(node)
        if self.states is not None:
            self.states.clear()

    def stats(self) -> ColumnStats:
        """Return figures for metrics."""
        states = self.states
        return ColumnStats(
            num_window_blocks=sum(group.pool.num_blocks for group in self.windows),
            num_held_window_blocks=sum(group.pool.num_held for group in self.windows),
            num_cached_window_blocks=sum(group.pool.num_cached for group in self.windows),
            num_states=0 if states is None else states.pool.num_blocks,
            num_held_states=0 if states is None else states.pool.num_held,
            num_checkpoints=0 if states is None else states.num_checkpoints,
        )

    def events(self, nodes: Iterable[tuple[int, CacheKey]], sequence: int) -> list[CacheEvent]:
        """Return the events that build the columns beside these nodes and their owners."""
        events: list[CacheEvent] = [
            stored.event(sequence)
            for group in self.windows
            for node, owner in nodes
            if (stored := group.stored(node, owner)) is not None
        ]
        if self.states is not None:
            events += [CheckpointStored(sequence, node, position) for node, position in self.states.places()]
        return events

    def check(self, leases: Iterable[Lease], sessions: Iterable[Held]) -> None:
        """Assert that every block and slot is held as often as leases and sessions say."""
        leases, sessions = list(leases), list(sessions)
        for index, group in enumerate(self.windows):
            holds = Counter(block for held in sessions for block in held.windows[index])
            for lease in leases:
                window = lease.windows[index]
                assert all((block == NO_BLOCK) == (at < window.first) for at, block in enumerate(window.blocks))
                holds.update(window.blocks[window.first :])
                if window.copy is not None:
                    holds[window.copy.source] += 1
            group.check(holds)
        if self.states is not None:
            holds = Counter(held.state for held in sessions if held.state != NO_SLOT)
            for lease in leases:
                holds.update(lease.state.slots() if lease.state is not None else ())
            self.states.check(holds)

    def _no_sources(self) -> tuple[int, ...]:
        return (NO_BLOCK,) * len(self.windows)


def _num_unheld(pool: BlockPool, blocks: Iterable[int]) -> int:
    return sum(1 for block in blocks if block != NO_BLOCK and not pool.refs(block))
