"""A pool of blocks or state slots: each is free, held (references > 0), cached (no reference, in the tree), or retired.

The number of blocks in use can change at any time. Blocks beyond it are retired: free blocks first, then cached ones in
the order of eviction. Held blocks are never taken: they are retired after they are released.

Only leaves are evicted: first those whose time to live has passed, then those released as cold, then by pin rank, then
the least recently used. The order is a heap of packed integers, rank | last use | block. Entries are never searched
for: when a block's rank or last use changes, a new entry is pushed, and an outdated one is dropped when it is popped.
Every operation is O(log n).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from quire.cache.radix import NO_BLOCK

EXPIRED, COLD, UNPINNED = 0, 1, 2  # ranks; a pin of rank r has UNPINNED + r
BLOCK_BITS, USE_BITS = 32, 64


class Storage(Protocol):
    """Where cached blocks are found: the tree itself, or a column beside it."""

    def __contains__(self, block: int) -> bool:
        """Is the block stored?"""
        ...

    def is_leaf(self, block: int) -> bool:
        """Does no other stored block depend on it?"""
        ...

    def remove(self, block: int) -> int:
        """Remove a leaf; return the block that it depended on, or NO_BLOCK."""
        ...


class BlockPool:
    """Owns the state of every block. Only the cache and its parts call it.

    `record_removed` is called for each block that is evicted or dropped, before it is removed from the storage.
    """

    def __init__(self, num_blocks: int, storage: Storage, record_removed: Callable[[int, float], None]) -> None:
        self._storage = storage
        self._record_removed = record_removed
        self.most_blocks = num_blocks
        self.num_blocks = num_blocks  # that may be in use; more may be held after a shrink
        self.num_held = 0
        self._retired: list[int] = []
        self._free = list(range(num_blocks - 1, -1, -1))
        self._refs = [0] * num_blocks  # a list: reading an array creates an int each time
        self._rank = bytearray([UNPINNED]) * num_blocks
        self._used = array("q", [0]) * num_blocks  # number of the release that ended its last hold
        self._last_use = 0
        self._order: list[int] = []
        self._ttls: dict[int, tuple[float, float]] = {}  # pins with a time to live: block -> (expiry, seconds)
        self._expiries: list[tuple[float, int]] = []

    @property
    def num_free(self) -> int:
        """Empty blocks."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that are in the tree and not held."""
        return self.most_blocks - len(self._retired) - len(self._free) - self.num_held

    @property
    def num_available(self) -> int:
        """Blocks that `take` could return. Includes every cached block: it is a leaf once its descendants are evicted.

        Negative while more blocks are held than may be in use.
        """
        return self.num_blocks - self.num_held

    @property
    def retired(self) -> list[int]:
        """Blocks out of use, ascending."""
        return sorted(self._retired)

    @property
    def num_to_retire(self) -> int:
        """Blocks still to be retired."""
        return self.most_blocks - self.num_blocks - len(self._retired)

    def resize(self, num_blocks: int) -> None:
        """Change how many blocks may be in use. Growing frees retired blocks; shrinking is left to `retire`."""
        self.num_blocks = num_blocks
        if (surplus := -self.num_to_retire) > 0:
            self._retired.sort(reverse=True)
            self._free[:0] = self._retired[-surplus:]  # the lowest of them, to be used after the free ones
            del self._retired[-surplus:]

    def retire(self, now: float) -> int:
        """Retire blocks that are due and not held: the highest free ones, then evicted ones. Return how many."""
        count = min(self.num_to_retire, self.most_blocks - len(self._retired) - self.num_held)
        if count <= 0:
            return 0
        if count > len(self._free):
            self._expire_pins(now)
        self._free.sort(reverse=True)
        taken = self._free[:count]
        del self._free[:count]
        taken += [self._evict(now) for _ in range(count - len(taken))]
        self._retired += taken
        return count

    def refs(self, block: int) -> int:
        """Return how many holds a block has."""
        return self._refs[block]

    def num_unheld(self, path: Sequence[int]) -> int:
        """Return how many blocks of a path are not held: the last ones, since a held block's parent is held too."""
        refs = self._refs
        return len(path) - bisect_left(path, True, key=lambda block: not refs[block])

    def take(self, count: int, now: float) -> list[int] | None:
        """Return `count` blank blocks, each held once, evicting as needed. None: not enough; nothing has changed."""
        if count > self.num_available:
            return None
        if count > len(self._free):
            self._expire_pins(now)
        taken = [self._free.pop() if self._free else self._evict(now) for _ in range(count)]
        for block in taken:
            self._refs[block] = 1
        self.num_held += count
        return taken

    def hold(self, blocks: Iterable[int], now: float) -> None:
        """Add a hold to each block; restart the time to live of its pin."""
        refs, ttls = self._refs, self._ttls
        for block in blocks:
            count = refs[block]
            refs[block] = count + 1
            if not count:
                self.num_held += 1
            if ttls and block in ttls:
                self._renew(block, now)

    def release(self, blocks: Iterable[int], now: float) -> None:
        """Remove a hold from each block, children first. Without holds, a block is cached if in the tree, else free."""
        refs, storage = self._refs, self._storage
        self._last_use += 1
        for block in blocks:
            count = refs[block] - 1
            assert count >= 0, f"block {block} was released more often than held"
            refs[block] = count
            if count:
                continue
            self.num_held -= 1
            if block not in storage:
                self._free.append(block)
                continue
            self._used[block] = self._last_use
            if self._rank[block] < UNPINNED:  # used after its pin had expired, or while it was cold
                self._rank[block] = UNPINNED
            if block in self._ttls:
                self._renew(block, now)
            if storage.is_leaf(block):
                self._push(block)

    def release_cold(self, blocks: Sequence[int], now: float) -> None:
        """Release blocks that are unlikely to be used again: without holds and pins they are evicted before others."""
        self.release(blocks, now)
        for block in blocks:
            if self._rank[block] == UNPINNED and self._is_evictable(block):
                self._rank[block] = COLD
                self._push(block)

    def pin(self, block: int, rank: int, ttl: float | None, now: float) -> None:
        """Set the pin rank of a block in the tree; 0 unpins it."""
        self._rank[block] = UNPINNED + rank
        self._ttls.pop(block, None)
        if ttl is not None:
            self._ttls[block] = (now, ttl)
            self._renew(block, now)
        if self._is_evictable(block):
            self._push(block)

    def pin_of(self, block: int) -> int:
        """Return the block's pin rank; 0 if it has none."""
        return max(self._rank[block] - UNPINNED, 0)

    def ttl_of(self, block: int) -> float | None:
        """Return the seconds that the block's pin lasts; None if it has none or no end."""
        return self._ttls[block][1] if block in self._ttls else None

    def drop(self, block: int, now: float) -> None:
        """Remove a leaf from the storage, whatever its order and its holds. Without holds it is free."""
        self._remove(block, now)
        if not self._refs[block]:
            self._free.append(block)

    def mark_removed(self, block: int) -> None:
        """Update a block that was removed from the storage: without holds it is free."""
        self._rank[block] = UNPINNED
        self._ttls.pop(block, None)
        if not self._refs[block]:
            self._free.append(block)

    def _is_evictable(self, block: int) -> bool:
        return not self._refs[block] and block in self._storage and self._storage.is_leaf(block)

    def _entry(self, block: int) -> int:
        return ((self._rank[block] << USE_BITS | self._used[block]) << BLOCK_BITS) | block

    def _push(self, block: int) -> None:
        """Push an evictable block onto the eviction heap."""
        heappush(self._order, self._entry(block))
        if len(self._order) > 1024 + self.num_cached * 5 // 4:  # a fifth is outdated: rebuild
            self._order = [entry for entry in self._order if self._is_current(entry)]
            heapify(self._order)

    def _is_current(self, entry: int) -> bool:
        block = entry & ((1 << BLOCK_BITS) - 1)
        return self._is_evictable(block) and entry == self._entry(block)

    def _evict(self, now: float) -> int:
        while not self._is_current(entry := heappop(self._order)):
            pass
        block = entry & ((1 << BLOCK_BITS) - 1)
        self._remove(block, now)
        return block

    def _remove(self, block: int, now: float) -> None:
        self._record_removed(block, now)
        parent = self._storage.remove(block)
        self._rank[block] = UNPINNED
        self._ttls.pop(block, None)
        if parent != NO_BLOCK and self._is_evictable(parent):
            self._push(parent)

    def _renew(self, block: int, now: float) -> None:
        seconds = self._ttls[block][1]
        self._ttls[block] = (now + seconds, seconds)
        heappush(self._expiries, (now + seconds, block))
        if len(self._expiries) > 1024 + 2 * len(self._ttls):
            self._expiries = [(ttl[0], block) for block, ttl in self._ttls.items()]
            heapify(self._expiries)

    def _expire_pins(self, now: float) -> None:
        """Expire the pins whose time to live has passed: their blocks are evicted first."""
        while self._expiries and self._expiries[0][0] <= now:
            when, block = heappop(self._expiries)
            if self._ttls.get(block, (None,))[0] != when:
                continue  # renewed or unpinned since
            del self._ttls[block]
            self._rank[block] = EXPIRED
            if self._is_evictable(block):
                self._push(block)

    def check(self, holds: dict[int, int]) -> None:
        """Assert that every block is in exactly one state, with these holds, and if evictable in the heap."""
        free, retired = set(self._free), set(self._retired)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(retired) == len(self._retired), "a block is retired twice"
        assert not free & retired and 0 <= self.num_to_retire <= self.most_blocks, "too many blocks are retired"
        assert self.num_held == sum(1 for refs in self._refs if refs)
        current = {entry for entry in self._order if self._is_current(entry)}
        expiries = set(self._expiries)
        for block in range(self.most_blocks):
            assert self._refs[block] == holds.get(block, 0), f"block {block} has a wrong number of holds"
            is_blank = not self._refs[block] and block not in self._storage
            assert (block in free or block in retired) == is_blank, f"block {block} is lost"
            assert not self._is_evictable(block) or self._entry(block) in current, f"block {block} can never be evicted"
        assert all((ttl[0], block) in expiries for block, ttl in self._ttls.items())
        assert all(block in self._storage for block in self._ttls)
