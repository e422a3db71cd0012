"""The KV cache of the scheduler: match, lease, extend, promise, seal, release.

    match    how much of a prompt is cached            a lookup, changes nothing
    lease    hold those blocks for a request           its other blocks are added as it grows
    extend   room for more tokens, all or nothing      evicts cold blocks, then idle sessions
    promise  blocks that the next step computes        found by others from now on, in that step too
    seal     blocks whose tokens are computed          found by others from now on
    release  the request needs its blocks no longer    sealed ones stay cached, also the last, partly filled one

A block is filled by one request and never written again once it is sealed. A request that needs only the head of a
sealed block gets a copy of it, so a hit is exact to the token.

`pins`, `sessions` and `resizing` are parts with their own verbs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.blocks import BlockPool
from quire.cache.explain import Explanation, explain
from quire.cache.history import History, StoredBlock
from quire.cache.pins import Pins
from quire.cache.radix import NO_BLOCK, PrefixTree, root_of
from quire.cache.resizing import Resizing
from quire.cache.sessions import Sessions
from quire.cache.stats import CacheStats
from quire.types.events import BlockStored
from quire.types.request import CacheKey, Pin
from quire.types.step import CopyBlock

Promise = list[tuple[int, bytes]]  # blocks of the tree and their identities


class Hit(NamedTuple):
    """The cached prefix of some tokens: whole blocks, then the head of one more."""

    blocks: list[int]
    num_tokens: int
    source: int  # the block whose head is to be copied, or NO_BLOCK
    leader: Lease | None  # the lease that computes the next block, if there is one
    node: bytes = b""  # identity of the last whole block
    limit: int | None = None  # how many tokens were looked up
    version: int = -1  # `num_changes` of the tree


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks that one request holds. Only the cache changes it."""

    key: CacheKey
    num_known: int  # tokens known at its start: others may wait for their blocks, but not for sampled ones
    pins: tuple[Pin, ...]
    blocks: list[int]  # the request's block table
    path: list[int]  # the tree's blocks for the full ones; differs from `blocks` where an equal block came first
    num_hit: int  # tokens that need not be computed
    copy: CopyBlock | None = None  # done before the first step; its source is held until then
    announced_edge: bytes = b""  # the edge that this lease is the first to compute
    is_private: bool = False  # no more of its blocks are added to the tree

    def twins(self) -> list[int]:
        """Return the blocks of `path` that are not ours but equal to ours: they are held to keep the path."""
        if self.path == self.blocks[: len(self.path)]:  # nearly always
            return []
        return [twin for twin, block in zip(self.path, self.blocks, strict=False) if twin != block]


class KVCache:
    """Paged KV in a prefix tree. Owns blocks, tree, pins and sessions."""

    def __init__(self, num_blocks: int, block_tokens: int = 16, session_ttl: float = 1800.0) -> None:
        self.most_blocks = num_blocks
        self.block_tokens = block_tokens
        self.history = History()
        self._tree = PrefixTree(num_blocks, block_tokens)
        self._pool = BlockPool(self._tree, self.history)
        self.pins = Pins(self._tree, self._pool)
        self.sessions = Sessions(self._pool, session_ttl)
        self.resizing = Resizing(self._pool, self.sessions)
        self._leases: dict[int, Lease] = {}
        self._computing: dict[bytes, Lease] = {}  # edge -> the lease that will seal it
        self.pending: set[int] = set()  # promised, and not known to be computed: not to be copied
        self._queried_tokens = 0
        self._hit_tokens = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that may be in use now, of `most_blocks`."""
        return self._pool.num_blocks

    # ── verbs ──

    def match(self, tokens: array[int], key: CacheKey, limit: int | None = None, last: Hit | None = None) -> Hit:
        """Return the cached prefix of `tokens`, at most the first `limit` of them.

        `last`: an earlier hit of these tokens, or of fewer of them; the search continues there if it is still cached.
        """
        if last is not None and last.version == self._tree.num_changes and last.limit == limit:
            return last._replace(leader=self._leader(last.node, len(last.blocks), tokens))
        data = tokens.tobytes() if limit is None else tokens[:limit].tobytes()
        known = [] if last is None else self._still_cached(last)
        blocks, node, partial_block, num_partial, num_tokens = self._tree.match(data, root_of(key), known)
        leader = self._leader(node, len(blocks), tokens) if self._computing else None
        if partial_block in self.pending:
            return Hit(blocks, num_tokens - num_partial, NO_BLOCK, leader, node, limit)
        source = partial_block if num_partial else NO_BLOCK
        return Hit(blocks, num_tokens, source, leader, node, limit, self._tree.num_changes)

    def lease(self, hit: Hit, tokens: array[int], key: CacheKey, now: float, pins: tuple[Pin, ...] = ()) -> Lease:
        """Hold a hit. If no block is free for the copy of a head, the hit ends at the last whole block."""
        self._pool.hold(hit.blocks, now)
        blocks, num_hit, copy = list(hit.blocks), len(hit.blocks) * self.block_tokens, None
        if hit.source != NO_BLOCK:
            self._pool.hold((hit.source,), now)
            target = self._take(1, now)
            if target is None:
                self._pool.release((hit.source,), now)
            else:
                copy = CopyBlock(hit.source, target[0], hit.num_tokens - num_hit)
                blocks.append(target[0])
                num_hit = hit.num_tokens
        lease = Lease(key, len(tokens), pins, blocks, list(hit.blocks), num_hit, copy)
        self.pins.apply(pins, lease.path, 0, now)
        self._leases[id(lease)] = lease
        self._announce(lease, tokens)
        self._queried_tokens += len(tokens)
        self._hit_tokens += num_hit
        return lease

    def fork(self, lease: Lease, num_tokens: int, now: float) -> Lease | None:
        """Return a second lease on the first `num_tokens` computed tokens. None: no block is free for the copy."""
        num_whole, rest = divmod(num_tokens, self.block_tokens)
        assert num_whole <= len(lease.path) or lease.is_private, "only computed blocks can be shared"
        target = self._take(1, now) if rest else []
        if target is None:
            return None
        copy = CopyBlock(lease.blocks[num_whole], target[0], rest) if rest else None
        path = lease.path[:num_whole]
        fork = Lease(lease.key, num_tokens, lease.pins, lease.blocks[:num_whole] + target, path, num_tokens, copy)
        fork.is_private = lease.is_private
        self._pool.hold(fork.blocks[:num_whole] + fork.twins() + lease.blocks[num_whole : num_whole + bool(rest)], now)
        self._leases[id(fork)] = fork
        self._queried_tokens += num_tokens
        self._hit_tokens += num_tokens
        return fork

    def extend(self, lease: Lease, num_tokens: int, now: float) -> bool:
        """Add blocks until `num_tokens` tokens fit. False: not enough blocks; nothing has changed."""
        need = -(-num_tokens // self.block_tokens) - len(lease.blocks)
        if need > 0:
            blocks = self._take(need, now)
            if blocks is None:
                return False
            lease.blocks += blocks
        return True

    def promise(self, lease: Lease, tokens: array[int], num_tokens: int, now: float) -> Promise:
        """Let others find the full blocks of the first `num_tokens`, which the step being planned computes.

        Return the blocks that this adds to the tree.
        """
        first = len(lease.path)
        self._store_whole(lease, tokens, num_tokens, now)
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
                removed.update(self._pool.drop_subtree(block, now))
        leases = [lease for lease in self._leases.values() if not removed.isdisjoint(lease.path)] if removed else []
        for lease in leases:
            self._make_private(lease, now)
        return leases

    def seal(self, lease: Lease, tokens: array[int], computed: int, now: float) -> None:
        """Let others find the full blocks of the first `computed` tokens, whose KV exists."""
        if lease.copy is not None:  # the step that began with the copy is over
            self._pool.release((lease.copy.source,), now)
            lease.copy = None
        self._store_whole(lease, tokens, computed, now)

    def release(self, lease: Lease, tokens: array[int], computed: int, now: float, session: str | None = None) -> None:
        """End a lease. Its computed blocks stay cached; a session holds them until its next turn."""
        if lease.copy is not None and computed <= lease.num_hit:  # the step with the copy may have failed
            computed = min(computed, len(lease.path) * self.block_tokens)
        self.seal(lease, tokens, computed, now)
        self._retract(lease)
        del self._leases[id(lease)]
        tail = self._store_tail(lease, tokens, computed, now)
        if session is not None and not lease.is_private:
            self.sessions.hold(session, tuple(lease.path) + tail, now)
        self._pool.release(lease.twins(), now)
        self._pool.release(reversed(lease.blocks), now)

    def clear(self, now: float) -> None:
        """Empty the tree. Running requests keep their blocks, which others no longer find."""
        self.sessions.close_all(now)
        for lease in self._leases.values():
            self._make_private(lease, now)
        for block, _ in reversed(list(self._tree.in_order())):
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
        return explain(self._tree, self.history, tokens, key)

    def snapshot(self) -> list[BlockStored]:
        """Return the events that build the present tree, parents first, all with the newest sequence number."""
        tree, sequence = self._tree, self.history.sequence
        stored = (
            StoredBlock(tree.node(block), self._parent_identity(block), block, tree.key(block), owner)
            for block, owner in tree.in_order()
        )
        return [each.event(sequence) for each in stored]

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
        )

    def check(self) -> None:
        """Assert all invariants. Expensive: for tests, and for an idle engine."""
        self._tree.check()
        holds = Counter(self.sessions.held_blocks())
        for lease in self._leases.values():
            holds.update(lease.blocks)
            holds.update(lease.twins())
            if lease.copy is not None:
                holds[lease.copy.source] += 1
            assert not lease.announced_edge or self._computing[lease.announced_edge] is lease
            assert lease.is_private or all(block in self._tree for block in lease.path)
        self._pool.check(holds)
        assert all(id(lease) in self._leases for lease in self._computing.values())

    # ── internals ──

    def _take(self, count: int, now: float) -> list[int] | None:
        return self._pool.take(count, now) if self.sessions.reclaim(count, now) else None

    def _leader(self, node: bytes, num_blocks: int, tokens: array[int]) -> Lease | None:
        """Return the lease that computes the block after the first `num_blocks`, the last of which is `node`."""
        at = num_blocks * self.block_tokens
        return self._computing.get(node + tokens[at : at + self.block_tokens].tobytes())

    def _still_cached(self, hit: Hit) -> list[int]:
        """Return the blocks of an earlier hit: if the last one is still in the tree, so are those before it."""
        return hit.blocks if hit.blocks and self._tree.node(hit.blocks[-1]) == hit.node else []

    def _last_node(self, lease: Lease) -> bytes:
        return self._tree.node(lease.path[-1]) if lease.path else root_of(lease.key)

    def _announce(self, lease: Lease, tokens: array[int]) -> None:
        """Announce the next block that this lease computes, if its tokens are known and no other lease does."""
        self._retract(lease)
        end = (len(lease.path) + 1) * self.block_tokens
        if end <= lease.num_known:
            edge = self._last_node(lease) + tokens[end - self.block_tokens : end].tobytes()
            if self._computing.setdefault(edge, lease) is lease:
                lease.announced_edge = edge

    def _retract(self, lease: Lease) -> None:
        if lease.announced_edge:
            del self._computing[lease.announced_edge]
            lease.announced_edge = b""

    def _make_private(self, lease: Lease, now: float) -> None:
        """Detach a lease from the tree: others find none of its blocks from now on."""
        self._retract(lease)
        lease.is_private = True
        self._pool.release(lease.twins(), now)
        lease.path = lease.blocks[: len(lease.path)]

    def _store_whole(self, lease: Lease, tokens: array[int], num_tokens: int, now: float) -> None:
        """Add to the tree the lease's blocks that `num_tokens` tokens fill."""
        first = len(lease.path)
        if lease.is_private or (first + 1) * self.block_tokens > num_tokens:
            return
        for index in range(first, num_tokens // self.block_tokens):
            chunk = tokens[index * self.block_tokens : (index + 1) * self.block_tokens].tobytes()
            block = self._store(lease, lease.blocks[index], chunk, now)
            if block != lease.blocks[index]:
                self._pool.hold((block,), now)
            lease.path.append(block)
        if lease.pins:
            self.pins.apply(lease.pins, lease.path[first:], first * self.block_tokens, now)
        self._announce(lease, tokens)

    def _store(self, lease: Lease, block: int, chunk: bytes, now: float) -> int:
        """Add a block to the tree at the end of the lease's path. Return it, or an equal block already there."""
        tree = self._tree
        stored = tree.insert(block, lease.path[-1] if lease.path else NO_BLOCK, chunk, lease.key)
        if stored == block:
            self.history.record_stored(
                tree.node(block), self._parent_identity(block), block, tree.key(block), lease.key
            )
            for shorter in tree.shorter_siblings(block):
                if not self._pool.refs(shorter) and not self._pool.pin_of(shorter):
                    self._pool.drop(shorter, now)
        return stored

    def _store_tail(self, lease: Lease, tokens: array[int], computed: int, now: float) -> tuple[int, ...]:
        """Add the last, partly filled block to the tree too: the next turn of a conversation begins inside it."""
        begin = len(lease.path) * self.block_tokens
        chunk = tokens[begin:computed].tobytes()
        if lease.is_private or not chunk or self._tree.covers(self._last_node(lease), chunk):
            return ()
        block = self._store(lease, lease.blocks[len(lease.path)], chunk, now)
        self.pins.apply(lease.pins, [block], begin, now)
        return (block,)

    def _parent_identity(self, block: int) -> bytes:
        """Return the identity of a block's parent; empty for a first block."""
        parent = self._tree.parent(block)
        return self._tree.node(parent) if parent != NO_BLOCK else b""
