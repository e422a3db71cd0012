"""The KV cache as the scheduler sees it: match, lease, extend, promise, seal, release.

    match    how much of a prompt is cached           a look-up, changes nothing
    lease    hold those blocks for a request          the rest of its blocks come as it grows
    extend   room for more tokens, all or nothing     evicts cold blocks, then idle sessions
    promise  blocks that the next step computes       can be found from now on, by others in that step too
    seal     blocks whose tokens are computed         can be found by others from now on
    release  the request is done with its blocks      what was sealed stays cached, its last, partly filled block too

A block is filled by one request and never written again once it is sealed. A request that needs only the head of a
sealed block gets a copy of it, so a hit is exact to the token.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.blocks import BlockPool
from quire.cache.explain import Explanation, explain
from quire.cache.history import Birth, History
from quire.cache.radix import NO_BLOCK, PrefixTree, root_of
from quire.cache.sessions import Sessions
from quire.cache.stats import CacheStats
from quire.types.events import BlockStored
from quire.types.request import CacheKey, Pin
from quire.types.step import CopyBlock

Tokens = array  # of "I": four bytes a token, and a slice's bytes are a key of the tree
Promised = list[tuple[int, bytes]]  # blocks of the tree and their identity
new_tuple = tuple.__new__  # a named tuple without the cost of its own constructor: there is one for each block


class Hit(NamedTuple):
    """The cached beginning of some tokens: whole blocks, then the head of one more."""

    blocks: list[int]
    num_tokens: int
    source: int  # the block whose head is to be copied, or NO_BLOCK
    leader: Lease | None  # who is computing the block that comes next, if someone is
    node: bytes = b""  # the identity of the last whole block
    limit: int | None = None  # of how many tokens this was looked for
    as_of: int = -1  # changes that the tree had seen


@dataclass(slots=True, eq=False)
class Lease:
    """What one request holds. Owned by the cache: others read it."""

    key: CacheKey
    num_known: int  # tokens that were known when it began: others may wait for these, not for what is sampled later
    pins: tuple[Pin, ...]
    blocks: list[int]  # the request's block table
    path: list[int]  # of those that are full, the blocks in the tree; differs from `blocks` where a twin came first
    num_hit: int  # tokens that need not be computed
    copy: CopyBlock | None = None  # to be done before the first step; its source is held until then
    announced: bytes = b""  # the edge this lease is the first to compute
    is_private: bool = False  # nothing more of it is to be found by others

    def twins(self) -> list[int]:
        """Blocks of the tree that stand for blocks of ours: held, or the path would break under us."""
        if self.path == self.blocks[: len(self.path)]:  # nearly always, and seen at once
            return []
        return [ours for ours, block in zip(self.path, self.blocks, strict=False) if ours != block]


class KVCache:
    """Paged KV in a prefix tree. The one owner of blocks, tree and sessions."""

    def __init__(self, num_blocks: int, block_tokens: int = 16, session_ttl: float = 1800.0) -> None:
        self.most_blocks = num_blocks
        self.block_tokens = block_tokens
        self.history = History()
        self._tree = PrefixTree(num_blocks, block_tokens)
        self._pool = BlockPool(self._tree, self.history)
        self._sessions = Sessions(session_ttl)
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

    def match(self, tokens: Tokens[int], key: CacheKey, limit: int | None = None, last: Hit | None = None) -> Hit:
        """How much of `tokens`, of at most the first `limit`, need not be computed.

        `last` is what was found of these tokens, or fewer of them, before: it is where the search begins, if it is
        still cached.
        """
        if last is not None and last.as_of == self._tree.num_changes and last.limit == limit:
            return last._replace(leader=self._leader(last.node, len(last.blocks), tokens))
        data = tokens.tobytes() if limit is None else tokens[:limit].tobytes()
        known = [] if last is None else self._still_cached(last)
        blocks, node, near, shared, num_tokens = self._tree.reach(data, root_of(key), known)
        leader = self._leader(node, len(blocks), tokens) if self._computing else None
        if near in self.pending:
            return Hit(blocks, num_tokens - shared, NO_BLOCK, leader, node, limit)
        source = near if shared else NO_BLOCK
        return Hit(blocks, num_tokens, source, leader, node, limit, self._tree.num_changes)

    def lease(self, hit: Hit, tokens: Tokens[int], key: CacheKey, now: float, pins: tuple[Pin, ...] = ()) -> Lease:
        """Hold what was matched. If no block is free for the copy of a head, the hit ends at the last whole block."""
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
        self._pin(pins, lease.path, 0, now)
        self._leases[id(lease)] = lease
        self._announce(lease, tokens)
        self._queried_tokens += len(tokens)
        self._hit_tokens += num_hit
        return lease

    def fork(self, lease: Lease, num_tokens: int, now: float) -> Lease | None:
        """A second lease on the first `num_tokens` computed tokens of another. None: no block is free for the copy."""
        whole, rest = divmod(num_tokens, self.block_tokens)
        assert whole <= len(lease.path) or lease.is_private, "only what is computed can be shared"
        target = self._take(1, now) if rest else []
        if target is None:
            return None
        copy = CopyBlock(lease.blocks[whole], target[0], rest) if rest else None
        path = lease.path[:whole]
        other = Lease(lease.key, num_tokens, lease.pins, lease.blocks[:whole] + target, path, num_tokens, copy)
        other.is_private = lease.is_private
        self._pool.hold(other.blocks[:whole] + other.twins() + lease.blocks[whole : whole + bool(rest)], now)
        self._leases[id(other)] = other
        self._queried_tokens += num_tokens
        self._hit_tokens += num_tokens
        return other

    def extend(self, lease: Lease, num_tokens: int, now: float) -> bool:
        """Room for `num_tokens` tokens in all. False: it cannot be had, and nothing has changed."""
        need = -(-num_tokens // self.block_tokens) - len(lease.blocks)
        if need > 0:
            blocks = self._take(need, now)
            if blocks is None:
                return False
            lease.blocks += blocks
        return True

    def promise(self, lease: Lease, tokens: Tokens[int], num_tokens: int, now: float) -> Promised:
        """The step being planned computes so many tokens: others may read their full blocks, the answer, in it too."""
        first = len(lease.path)
        self._store_whole(lease, tokens, num_tokens, now)
        mine = [ours for ours, own in zip(lease.path[first:], lease.blocks[first:], strict=False) if ours == own]
        self.pending.update(mine)
        return [(block, self._tree.node(block)) for block in mine]

    def fulfil(self, promises: Iterable[Promised]) -> None:
        """The step is over: these blocks are computed."""
        self.pending.difference_update(block for promised in promises for block, _ in promised)

    def withdraw(self, promised: Promised, now: float) -> list[Lease]:
        """These blocks were not computed. Nor was what continues them; answers the leases that have some of it."""
        gone: set[int] = set()
        self.fulfil([promised])
        for block, node in promised:
            if self._tree.node(block) == node:  # else it went with one before, or was evicted
                gone.update(self._pool.uproot(block, now))
        relying = [lease for lease in self._leases.values() if not gone.isdisjoint(lease.path)] if gone else []
        for lease in relying:
            self._make_private(lease, now)
        return relying

    def seal(self, lease: Lease, tokens: Tokens[int], computed: int, now: float) -> None:
        """The KV of the first `computed` tokens exists: its full blocks can be found by others."""
        if lease.copy is not None:  # the step that began with the copy is over
            self._pool.release((lease.copy.source,), now)
            lease.copy = None
        self._store_whole(lease, tokens, computed, now)

    def release(self, lease: Lease, tokens: Tokens[int], computed: int, now: float, session: str | None = None) -> None:
        """The request is done, or put off. What it computed stays findable; a session holds it until its next turn."""
        if lease.copy is not None and computed <= lease.num_hit:  # the step with the copy may have failed
            computed = min(computed, len(lease.path) * self.block_tokens)
        self.seal(lease, tokens, computed, now)
        self._retract(lease)
        del self._leases[id(lease)]
        tail = self._store_tail(lease, tokens, computed, now)
        if session is not None and not lease.is_private:
            kept = tuple(lease.path) + tail
            self._pool.hold(kept, now)
            self._pool.release(reversed(self._sessions.put(session, kept, now)), now)
        self._pool.release(lease.twins(), now)
        self._pool.release(reversed(lease.blocks), now)

    # ── retention ──

    def pin(self, tokens: Tokens[int], key: CacheKey, pin: Pin, now: float) -> int:
        """Pin what is cached of a token range; answers how many tokens of the range that is."""
        reach = self._tree.reach(tokens.tobytes(), root_of(key))
        blocks = reach.blocks + ([reach.near] if reach.shared else [])
        self._pin((pin,), blocks, 0, now)
        return max(0, min(pin.end, reach.num_tokens) - pin.start)

    def unpin(self, tokens: Tokens[int], key: CacheKey, now: float) -> int:
        """Lift the pins from what is cached of these tokens; answers how many blocks had one."""
        reach = self._tree.reach(tokens.tobytes(), root_of(key))
        pinned = [b for b in [*reach.blocks, *([reach.near] if reach.shared else [])] if self._pool.pin_of(b)]
        for block in pinned:
            self._pool.pin(block, 0, None, now)
        return len(pinned)

    def reclaim(self, count: int, now: float) -> bool:
        """See to it that `count` blocks can be had: cold cache can go any time, idle sessions must let go first."""
        while self._pool.num_available < count:
            idle = self._sessions.drop_oldest()
            if idle is None:
                return False
            self._pool.release(reversed(idle), now)
        return True

    def resize(self, num_blocks: int, now: float) -> None:
        """Change how many blocks may be in use. What is held beyond that stays until it is released."""
        self._pool.resize(min(num_blocks, self.most_blocks))
        self.settle(now)

    def settle(self, now: float) -> bool:
        """Go on shrinking, if there are blocks to give up still; idle sessions let go. Did something change?"""
        if not self._pool.num_owed:
            return False
        self.reclaim(0, now)
        return bool(self._pool.settle(now))

    def unused(self) -> list[int]:
        """Blocks that are not in use and will not be until the cache grows, ascending."""
        return self._pool.aside

    def cost(self, hit: Hit) -> int:
        """Blocks that holding a hit takes from what can be had: those that nobody holds, and the one for a copy."""
        if hit.source == NO_BLOCK:
            return self._pool.num_unheld(hit.blocks)
        return self._pool.num_unheld([*hit.blocks, hit.source]) + 1

    def close_session(self, session: str, now: float) -> int:
        """End a session; answers how many blocks it held."""
        blocks = self._sessions.drop(session)
        self._pool.release(reversed(blocks), now)
        return len(blocks)

    def expire_sessions(self, now: float) -> None:
        """End the sessions that have been idle for longer than their time to live."""
        for blocks in self._sessions.drop_expired(now):
            self._pool.release(reversed(blocks), now)

    def clear(self, now: float) -> None:
        """Forget everything. Blocks in use stay with their requests, and will not be found by others."""
        while (blocks := self._sessions.drop_oldest()) is not None:
            self._pool.release(reversed(blocks), now)
        for lease in self._leases.values():
            self._make_private(lease, now)
        for block, _ in reversed(list(self._tree.in_order())):
            self._tree.remove(block)
            self._pool.abandon(block)
        self.history.cleared()

    # ── answers ──

    def explain(self, tokens: Tokens[int], key: CacheKey) -> Explanation:
        """Why `match` finds what it finds. It tells of other tenants' salts: for operators, not for tenants."""
        return explain(self._tree, self.history, tokens, key)

    def snapshot(self) -> list[BlockStored]:
        """The events that build the present tree, parents first, all with the newest sequence number."""
        sequence = self.history.sequence
        return [self._birth(block, owner).event(sequence) for block, owner in self._tree.in_order()]

    def stats(self) -> CacheStats:
        """Numbers for metrics and for `/v1/cache`."""
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free=self._pool.num_free,
            num_held=self._pool.num_held,
            num_cached=self._pool.num_cached,
            num_sessions=len(self._sessions),
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            sequence=self.history.sequence,
        )

    def check(self) -> None:
        """All invariants. Expensive: for tests, and for an idle engine."""
        self._tree.check()
        holds = Counter(self._sessions.held())
        for lease in self._leases.values():
            holds.update(lease.blocks)
            holds.update(lease.twins())
            if lease.copy is not None:
                holds[lease.copy.source] += 1
            assert not lease.announced or self._computing[lease.announced] is lease
            assert lease.is_private or all(block in self._tree for block in lease.path)
        self._pool.check(holds)
        assert all(id(lease) in self._leases for lease in self._computing.values())

    # ── inside ──

    def _take(self, count: int, now: float) -> list[int] | None:
        return self._pool.take(count, now) if self.reclaim(count, now) else None

    def _leader(self, node: bytes, num_blocks: int, tokens: Tokens[int]) -> Lease | None:
        """Who computes the block that comes after so many, the last of which is `node`."""
        at = num_blocks * self.block_tokens
        return self._computing.get(node + tokens[at : at + self.block_tokens].tobytes())

    def _still_cached(self, hit: Hit) -> list[int]:
        """The blocks of an earlier hit: if the last one is where it was, so are those before it."""
        return hit.blocks if hit.blocks and self._tree.node(hit.blocks[-1]) == hit.node else []

    def _tip(self, lease: Lease) -> bytes:
        return self._tree.node(lease.path[-1]) if lease.path else root_of(lease.key)

    def _announce(self, lease: Lease, tokens: Tokens[int]) -> None:
        """Tell others which block this lease computes next, if its tokens are known and nobody else is on it."""
        self._retract(lease)
        end = (len(lease.path) + 1) * self.block_tokens
        if end <= lease.num_known:
            edge = self._tip(lease) + tokens[end - self.block_tokens : end].tobytes()
            if self._computing.setdefault(edge, lease) is lease:
                lease.announced = edge

    def _retract(self, lease: Lease) -> None:
        if lease.announced:
            del self._computing[lease.announced]
            lease.announced = b""

    def _make_private(self, lease: Lease, now: float) -> None:
        """Nothing of it is to be found by others, or not any more."""
        self._retract(lease)
        lease.is_private = True
        self._pool.release(lease.twins(), now)
        lease.path = lease.blocks[: len(lease.path)]

    def _store_whole(self, lease: Lease, tokens: Tokens[int], num_tokens: int, now: float) -> None:
        """Put the lease's full blocks into the tree, as far as `num_tokens` fill them."""
        first = len(lease.path)
        if lease.is_private or (first + 1) * self.block_tokens > num_tokens:
            return
        for index in range(first, num_tokens // self.block_tokens):
            chunk = tokens[index * self.block_tokens : (index + 1) * self.block_tokens].tobytes()
            block = self._store(lease, lease.blocks[index], chunk, now)
            if block != lease.blocks[index]:
                self._pool.hold((block,), now)
            lease.path.append(block)
        self._pin(lease.pins, lease.path[first:], first * self.block_tokens, now)
        self._announce(lease, tokens)

    def _store(self, lease: Lease, block: int, chunk: bytes, now: float) -> int:
        """Put a block into the tree at the end of the lease's path; answers the one there, perhaps an older twin."""
        there = self._tree.insert(block, lease.path[-1] if lease.path else NO_BLOCK, chunk, lease.key)
        if there == block:
            self.history.stored(self._birth(block, lease.key))
            for shorter in self._tree.shorter(block):
                if not self._pool.refs(shorter) and not self._pool.pin_of(shorter):
                    self._pool.drop(shorter, now)
        return there

    def _store_tail(self, lease: Lease, tokens: Tokens[int], computed: int, now: float) -> tuple[int, ...]:
        """The last, partly filled block can be found too: the next turn of a conversation begins in its middle."""
        begin = len(lease.path) * self.block_tokens
        chunk = tokens[begin:computed].tobytes()
        if lease.is_private or not chunk or self._tree.covers(self._tip(lease), chunk):
            return ()
        block = self._store(lease, lease.blocks[len(lease.path)], chunk, now)
        self._pin(lease.pins, [block], begin, now)
        return (block,)

    def _pin(self, pins: Iterable[Pin], blocks: Iterable[int], begin: int, now: float) -> None:
        """Give the blocks, the first of which begins at token `begin`, the ranks of the pins that touch them.

        A pin only raises a rank: a guest cannot weaken what another has pinned.
        """
        for pin in pins:
            for at, block in enumerate(blocks):
                touches = pin.start < begin + (at + 1) * self.block_tokens and pin.end > begin + at * self.block_tokens
                if touches and pin.rank >= self._pool.pin_of(block):
                    self._pool.pin(block, pin.rank, pin.ttl, now)

    def _birth(self, block: int, owner: CacheKey) -> Birth:
        parent = self._tree.parent(block)
        above = self._tree.node(parent) if parent != NO_BLOCK else b""
        return new_tuple(Birth, (self._tree.node(block), above, block, self._tree.key(block), owner))
