"""The KV cache of the scheduler: match, lease, extend, promise, seal, release.

    match    how much of a prompt is cached            a lookup, changes nothing
    lease    hold those blocks for a request           its other blocks are added as it grows
    extend   room for more tokens, all or nothing      evicts cold blocks, then idle sessions
    promise  blocks that the next step computes        found by others from now on, in that step too
    seal     blocks whose tokens are computed          found by others from now on
    release  the request needs its blocks no longer    sealed ones stay cached, also the last, partly filled one

A block is filled by one request; what others find of it is never written again. A request that needs only the head of a
block gets a copy of it, so a hit is exact to the token. `pins`, `sessions`, `resizing` and `moving` have own verbs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from quire.cache.blocks import BlockPool
from quire.cache.checkpoints import DEFAULT_SPACING, Checkpoints, CheckpointSpacing
from quire.cache.columns import Columns, Need
from quire.cache.explain import Explanation, explain
from quire.cache.history import History, stored_block
from quire.cache.leaders import Leaders
from quire.cache.lease import Hit, Lease
from quire.cache.moving import Moving
from quire.cache.pins import Pins
from quire.cache.radix import NO_BLOCK, PrefixTree, root_of
from quire.cache.resizing import Resizing
from quire.cache.sessions import Sessions
from quire.cache.sources import SourcePool
from quire.cache.stats import NO_COLUMNS, CacheStats
from quire.cache.windows import WindowColumn
from quire.cache.writer import TreeWriter
from quire.types.events import CacheEvent
from quire.types.request import CacheKey, Pin
from quire.types.step import CopyBlock

__all__ = ["Hit", "KVCache", "Lease", "Promise"]

Promise = list[tuple[int, bytes]]  # blocks of the tree and their identities


class KVCache:
    """Paged KV in a prefix tree. Owns blocks, tree, pins and sessions; for some models window groups and states."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = 16,
        session_ttl: float = 1800.0,
        *,
        windows: Sequence[tuple[int, int]] = (),  # (tokens in the window, blocks) of each window group
        num_states: int = 0,
        spacing: CheckpointSpacing = DEFAULT_SPACING,
    ) -> None:
        self.most_blocks = num_blocks
        self.block_tokens = block_tokens
        self.history = History()
        self._tree = tree = PrefixTree(num_blocks, block_tokens)
        self._pool = BlockPool(num_blocks, tree, self._record_removed)
        self.pending: set[int] = set()  # promised, and not known to be computed: not to be copied
        groups = tuple(WindowColumn(n, *size, tree, self.history, self.pending) for n, size in enumerate(windows, 1))
        self._states = Checkpoints(num_states, tree, self.history, spacing) if num_states else None
        self._columns = Columns(tree, self._pool, groups, self._states, spacing.every) if groups or num_states else None
        self.pins = Pins(tree, self._pool, self._columns)
        self.sessions = Sessions(self._pool, session_ttl, self._columns)
        self.resizing = Resizing(self._pool, self.sessions)
        self._leases: dict[int, Lease] = {}
        self._leaders = Leaders(tree, num_states > 0)
        self._writer = TreeWriter(tree, self._pool, self._columns, self.pins, self._leaders, self.history)
        self.moving = Moving(tree, self._pool, self.sessions, self._columns, self._writer, self.pending)
        self._queried_tokens = self._hit_tokens = 0
        self.sources: SourcePool | None = None  # of a model with an encoder: what that has computed

    @property
    def num_blocks(self) -> int:
        """Blocks that may be in use now, of `most_blocks`."""
        return self._pool.num_blocks

    @property
    def has_states(self) -> bool:
        """Do requests have a state, which is neither shared within a step nor forked?"""
        return self._states is not None

    # ── verbs ──

    def match(self, tokens: array[int], key: CacheKey, limit: int | None = None, last: Hit | None = None) -> Hit:
        """Return the cached prefix of `tokens`, at most the first `limit` of them.

        `last`: an earlier hit of these tokens, or of fewer of them; the search continues there if it is still cached.
        """
        if last is not None and last.version == self._tree.num_changes and last.limit == limit:
            return last._replace(leader=self._leaders.find(last, tokens))
        data = tokens.tobytes() if limit is None else tokens[:limit].tobytes()
        known = () if last is None else self._still_cached(last)
        blocks, node, source, num_partial, num_tokens = self._tree.match(data, root_of(key), known)
        version = self._tree.num_changes
        if source in self.pending:
            num_tokens, num_partial, version = num_tokens - num_partial, 0, -1
        if not num_partial:
            source = NO_BLOCK
        hit = Hit(blocks, num_tokens, source, None, node, limit, version, num_tokens, blocks)
        if self._columns is not None:
            hit = self._columns.resumable(hit)
        leader = self._leaders.find(hit, tokens)
        return hit if leader is None else hit._replace(leader=leader)

    def without_copy(self, hit: Hit) -> Hit:
        """Return the hit's longest part that needs no copy of a block's head."""
        hit = hit._replace(num_tokens=len(hit.blocks) * self.block_tokens, source=NO_BLOCK)
        if self._columns is None:
            return hit
        hit = self._columns.resumable(hit)
        return hit if hit.source == NO_BLOCK else self.without_copy(hit)

    def can_start(self, hit: Hit, num_tokens: int, now: float) -> bool:
        """Is there a state slot and room in all window groups for a lease whose first step ends at `num_tokens`?"""
        columns = self._columns
        return columns is None or self._reclaim(partial(columns.needs_to_start, hit, num_tokens), now)

    def lease(self, hit: Hit, tokens: array[int], key: CacheKey, now: float, pins: tuple[Pin, ...] = ()) -> Lease:
        """Hold a hit. If no block is free for the copy of a head, the hit ends at the last whole block."""
        if self._columns is not None:
            hit = self._affordable(hit, now)
        num_whole = len(hit.blocks) * self.block_tokens
        lease = Lease(key, len(tokens), pins, list(hit.blocks), list(hit.blocks), num_whole)
        self._pool.hold(hit.blocks, now)
        if self._columns is not None:
            self._columns.start(lease, hit, now)  # before a block is taken, which may evict one that its copies read
        if hit.source != NO_BLOCK:
            self._pool.hold((hit.source,), now)
            target = self._take(1, now)
            if target is None:
                self._pool.release((hit.source,), now)
            else:
                lease.copy = CopyBlock(hit.source, target[0], hit.num_tokens - num_whole)
                lease.blocks.append(target[0])
                lease.num_hit = hit.num_tokens
        self.pins.apply(pins, lease.path, 0, now)
        self._leases[id(lease)] = lease
        self._leaders.announce(lease, tokens)
        self._queried_tokens += len(tokens)
        self._hit_tokens += lease.num_hit
        return lease

    def can_fork(self, lease: Lease, num_tokens: int) -> bool:
        """Can the first `num_tokens` tokens be shared by `fork`? If not, `match` finds what is cached of them."""
        return self._columns is None or self._columns.can_fork(lease, num_tokens)

    def fork(self, lease: Lease, num_tokens: int, now: float) -> Lease | None:
        """Return a second lease on the first `num_tokens` computed tokens. None: no block is free for the copy."""
        num_whole, rest = divmod(num_tokens, self.block_tokens)
        assert num_whole <= len(lease.path) or lease.is_private, "only computed blocks can be shared"
        columns = self._columns
        if columns is not None and not self._reclaim(partial(columns.needs_to_fork, lease, num_tokens), now):
            return None
        target = self._take(1, now) if rest else []
        if target is None:
            return None
        copy = CopyBlock(lease.blocks[num_whole], target[0], rest) if rest else None
        path = lease.path[:num_whole]
        fork = Lease(lease.key, num_tokens, lease.pins, lease.blocks[:num_whole] + target, path, num_tokens, copy)
        fork.is_private, fork.first_twin = lease.is_private, lease.twin_before(num_whole)
        self._pool.hold(fork.blocks[:num_whole] + fork.twins() + lease.blocks[num_whole : num_whole + bool(rest)], now)
        if columns is not None:
            columns.fork(lease, fork, num_tokens, now)
        self._leases[id(fork)] = fork
        self._queried_tokens += num_tokens
        self._hit_tokens += num_tokens
        return fork

    def extend(self, lease: Lease, num_tokens: int, now: float, computed: int = 0) -> bool:
        """Add blocks until `num_tokens` tokens fit. False: not enough blocks in some group; none was added.

        Window blocks that no query from position `computed` on reads are released.
        """
        num_blocks = -(-num_tokens // self.block_tokens)
        need = num_blocks - len(lease.blocks)
        if self._columns is not None:
            self._columns.release_passed(lease, computed, now)
            needs = [(self._pool, max(0, need)), *self._columns.needs_to_extend(lease, num_blocks)]
            if not all(self.sessions.reclaim(count, now, pool) for pool, count in needs):
                return False
            self._columns.extend(lease, num_blocks, now)
        if need > 0:
            blocks = self._take(need, now)
            if blocks is None:
                return False
            lease.blocks += blocks
        return True

    def detach(self, lease: Lease, now: float) -> None:
        """Add no more blocks of a lease to the tree, so that it holds no equal ones beside its own."""
        self._writer.detach(lease, now)

    def promise(self, lease: Lease, tokens: array[int], num_tokens: int, now: float) -> Promise:
        """Let others find the full blocks of the first `num_tokens`, which the step being planned computes.

        Return the blocks that this adds to the tree: none for a model with states, which do not exist until the step
        is over.
        """
        if self.has_states:
            return []
        first = len(lease.path)
        self._writer.store_whole(lease, tokens, num_tokens, now)
        if self._columns is not None:
            self._columns.store_promised(lease, first, now)
        added = [block for block, own in zip(lease.path[first:], lease.blocks[first:], strict=False) if block == own]
        self.pending.update(added)
        return [(block, self._tree.node(block)) for block in added]

    def fulfil(self, promises: Iterable[Promise]) -> None:
        """Mark promised blocks as computed: their step is over."""
        self.pending.difference_update(block for promise in promises for block, _ in promise)

    def withdraw(self, promise: Promise, now: float) -> list[Lease]:
        """Remove promised blocks that were not computed, with their descendants; return the leases that have some."""
        removed: set[int] = set()
        self.fulfil([promise])
        for block, node in promise:
            if self._tree.node(block) == node:  # else it was removed with an earlier one, or evicted
                subtree = self._tree.subtree(block)
                for each in reversed(subtree):
                    self._pool.drop(each, now)
                removed.update(subtree)
        leases = [lease for lease in self._leases.values() if not removed.isdisjoint(lease.path)] if removed else []
        for lease in leases:
            self._writer.detach(lease, now)
        return leases

    def seal(self, lease: Lease, tokens: array[int], computed: int, now: float) -> None:
        """Let others find the full blocks of the first `computed` tokens, whose KV exists."""
        if lease.copy is not None:  # the step that began with the copy is over
            self._pool.release((lease.copy.source,), now)
            lease.copy = None
        self._writer.store_whole(lease, tokens, computed, now)
        if self._columns is not None:
            self._columns.release_sources(lease, now)
            nodes = self._writer.store_saved(lease, tokens, computed, now)
            self._columns.store(lease, nodes, computed, now)

    def continuation(self, lease: Lease, tokens: array[int], limit: int) -> array[int]:
        """Return up to `limit` tokens that followed all of these in another request with the same key."""
        return self._tree.continuation(lease.path, root_of(lease.key), tokens, limit)

    def release(
        self,
        lease: Lease,
        tokens: array[int],
        computed: int,
        now: float,
        session: str | None = None,
        state_at: int | None = None,
    ) -> None:
        """End a lease. Its computed blocks stay cached; a session holds them until its next turn.

        `state_at`: the live slot has the state after this many tokens; it becomes a checkpoint. None: it is freed.
        """
        if lease.copy is not None and computed <= lease.num_hit:  # the step with the copy may have failed
            computed = min(computed, len(lease.path) * self.block_tokens)
        self.seal(lease, tokens, computed, now)
        self._leaders.retract(lease)
        del self._leases[id(lease)]
        nodes = (*lease.path, *self._writer.store_tail(lease, tokens, computed, now))
        if self._columns is not None:
            self._columns.end(lease, nodes, computed, state_at, now)
        if session is not None and not lease.is_private:
            held = None if self._columns is None else self._columns.held_at(nodes, computed)
            self.sessions.hold(session, nodes, now, held)
        self._pool.release(lease.twins(), now)
        self._pool.release(reversed(lease.blocks), now)

    # ── states ──

    def want(self, lease: Lease, position: int) -> bool:
        """Want a checkpoint at a position, or the last one before it that the device can save.

        Return whether one is made: not if the position is in a step that is planned already.
        """
        return self._states is not None and self._states.want(lease, position)

    def take_saves(self, lease: Lease, start: int, end: int, now: float) -> list[tuple[int, int]]:
        """Return (position, slot) of the checkpoints to save in a part that computes the tokens `start` to `end`.

        Slots of cold checkpoints are taken; if all are held, a checkpoint is left out.
        """
        return [] if self._states is None else self._states.take_saves(lease, start, end, now)

    def branch_state(self, lease: Lease, now: float) -> int | None:
        """Take a second slot, which a step with drafts writes instead of the live one. None: all slots are held."""
        assert self._states is not None
        return self._states.branch(lease, now)

    def settle_state(self, lease: Lease, keeps_new: bool, now: float) -> None:
        """Keep one of a branch's two slots as the live one: the new one if all drafts were accepted."""
        assert self._states is not None
        self._states.settle(lease, keeps_new, now)

    def clear(self, now: float) -> None:
        """Empty the tree. Running requests keep their blocks, which others no longer find."""
        self.sessions.close_all(now)
        for lease in self._leases.values():
            self._writer.detach(lease, now)
        blocks = [block for block, _ in self._tree.in_order()]
        if self._columns is not None:
            self._columns.clear(blocks)
        for block in reversed(blocks):
            self._tree.remove(block)
            self._pool.mark_removed(block)
        self.history.record_cleared()

    # ── figures and checks ──

    def cost(self, hit: Hit) -> int:
        """Return how many available blocks a lease on this hit takes: those not held yet, and one for a copy."""
        if hit.source == NO_BLOCK:
            return self._pool.num_unheld(hit.blocks)
        return self._pool.num_unheld([*hit.blocks, hit.source]) + 1

    def explain(self, tokens: array[int], key: CacheKey) -> Explanation:
        """Explain the result of `match`. It reveals other tenants' salts: for operators, not for tenants."""
        return explain(self._tree, self._columns, self.history, tokens, key)

    def snapshot(self) -> list[CacheEvent]:
        """Return the events that build the present tree, parents first, all with the newest sequence number."""
        nodes, sequence = list(self._tree.in_order()), self.history.sequence
        events = self.history.rebase(stored_block(self._tree, *node) for node in nodes)
        return events if self._columns is None else events + self._columns.events(nodes, sequence)

    def stats(self) -> CacheStats:
        """Return figures for metrics and for `/v1/cache`."""
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=self._pool.num_free,
            num_held=self._pool.num_held,
            num_cached=self._pool.num_cached,
            num_sessions=len(self.sessions),
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            sequence=self.history.sequence,
            columns=NO_COLUMNS if self._columns is None else self._columns.stats(),
        )

    def check(self) -> None:
        """Assert all invariants. Expensive: for tests, and for an idle engine."""
        self._tree.check()
        holds = Counter(self.sessions.held_blocks())
        for lease in self._leases.values():
            lease.check(self._tree)
            holds.update(lease.held_blocks())
        self._pool.check(holds)
        for block in holds:
            parent = self._tree.parent(block)
            assert parent == NO_BLOCK or self._pool.refs(parent), f"block {block} is held, but not its parent"
        if self._columns is not None:
            self._columns.check(self._leases.values(), self.sessions.held_columns())
        self._leaders.check(self._leases)

    # ── internals ──

    def _take(self, count: int, now: float) -> list[int] | None:
        return self._pool.take(count, now) if self.sessions.reclaim(count, now) else None

    def _reclaim(self, needs: Callable[[], list[Need]], now: float) -> bool:
        """Close idle sessions until the needed blocks are available. Return whether they are.

        A block to be shared that a closed session held is needed, too: so the needs are counted again.
        """
        num_sessions = -1
        while num_sessions != len(self.sessions):
            num_sessions = len(self.sessions)
            if not all(self.sessions.reclaim(count, now, pool) for pool, count in needs()):
                return False
        return True

    def _record_removed(self, block: int, now: float) -> None:
        """Record that a block is about to be removed from the tree, and free what belongs to it."""
        self.history.record_removed(int.from_bytes(self._tree.node(block), "big"), self._tree.key(block), now)
        if self._columns is not None:
            self._columns.drop(block)

    def _affordable(self, hit: Hit, now: float) -> Hit:
        """Return the part of a hit that there is room for: all of it, all but a head to be copied, or nothing."""
        columns = self._columns
        assert columns is not None
        hit = columns.resumable(hit)
        for part in (hit, self.without_copy(hit)):
            if self._reclaim(partial(self._needs, columns, part), now):
                return part
        return columns.shortened(hit, 0)

    def _needs(self, columns: Columns, hit: Hit) -> list[Need]:
        return [(self._pool, self.cost(hit)), *columns.needs_to_start(hit, 0)]

    def _still_cached(self, hit: Hit) -> Sequence[int]:
        """Return the blocks of an earlier hit: if the last one is still in the tree, so are those before it."""
        return hit.path if hit.path and self._tree.node(hit.path[-1]) == hit.node else ()
