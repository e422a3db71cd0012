"""The pool: every block is free, held (references > 0), cached (no reference, in the tree), or set aside.

How many may be in use can change while it runs. What is beyond that number is set aside: free blocks first, then cached
ones in the order of eviction. Held blocks are never taken: they are set aside by and by, as they are released.

Eviction takes leaves alone: first those whose time to live has passed, then by pin rank, then the least recently used.
The order is a heap of packed integers, rank | last use | block. An entry is never searched for: when a block's rank or
last use changes a new entry is pushed, and an old one is recognised when it comes up. All of it is O(log n).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from quire.cache.history import History
from quire.cache.radix import NO_BLOCK, PrefixTree

EXPIRED, UNPINNED = 0, 1  # ranks; a pin of rank r has UNPINNED + r
BLOCK_BITS, USE_BITS = 32, 64


class BlockPool:
    """Owns the state of every block. Only `KVCache` calls it."""

    def __init__(self, tree: PrefixTree, history: History) -> None:
        self._tree = tree
        self._history = history
        self.most_blocks = tree.num_blocks
        self.num_blocks = tree.num_blocks  # that may be in use; others, and what is held beyond it, are to be set aside
        self.num_held = 0
        self._aside: list[int] = []
        self._free = list(range(tree.num_blocks - 1, -1, -1))
        self._refs = [0] * tree.num_blocks  # a list: an array would make a number at each look
        self._rank = bytearray([UNPINNED]) * tree.num_blocks
        self._used = array("q", [0]) * tree.num_blocks  # number of the release that made it unheld
        self._last_use = 0
        self._order: list[int] = []
        self._lives: dict[int, tuple[float, float]] = {}  # block -> (when it expires, seconds each use gives it)
        self._expiries: list[tuple[float, int]] = []

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found and are not in use."""
        return self.most_blocks - len(self._aside) - len(self._free) - self.num_held

    @property
    def num_available(self) -> int:
        """Blocks that `take` could give: every cached block is a leaf once its descendants, also cached, are gone.

        Less than none after the number was lowered below what is held.
        """
        return self.num_blocks - self.num_held

    @property
    def aside(self) -> list[int]:
        """Blocks that are not in use and will not be, ascending: their memory can serve others."""
        return sorted(self._aside)

    @property
    def num_owed(self) -> int:
        """Blocks that are still to be set aside."""
        return self.most_blocks - self.num_blocks - len(self._aside)

    def resize(self, num_blocks: int) -> None:
        """Change how many blocks may be in use. What is too much then goes with `settle`."""
        self.num_blocks = num_blocks
        if (surplus := -self.num_owed) > 0:
            self._aside.sort(reverse=True)
            self._free[:0] = self._aside[-surplus:]  # the lowest of them, to be used after what is free already
            del self._aside[-surplus:]

    def settle(self, now: float) -> int:
        """Set aside what is owed, as far as nobody holds it: the highest free ones, then what is evicted."""
        count = min(self.num_owed, self.most_blocks - len(self._aside) - self.num_held)
        if count <= 0:
            return 0
        if count > len(self._free):
            self._expire(now)
        self._free.sort(reverse=True)
        taken = self._free[:count]
        del self._free[:count]
        taken += [self._evict(now) for _ in range(count - len(taken))]
        self._aside += taken
        return count

    def refs(self, block: int) -> int:
        """How many holds a block has."""
        return self._refs[block]

    def num_unheld(self, path: Sequence[int]) -> int:
        """How many blocks of a path nobody holds: the last ones, since whoever holds a block holds those before it."""
        refs = self._refs
        return len(path) - bisect_left(path, True, key=lambda block: not refs[block])

    def take(self, count: int, now: float) -> list[int] | None:
        """`count` blank blocks, held once, evicting what must go. None: they cannot all be had, and nothing changed."""
        if count > self.num_available:
            return None
        if count > len(self._free):
            self._expire(now)
        taken = [self._free.pop() if self._free else self._evict(now) for _ in range(count)]
        for block in taken:
            self._refs[block] = 1
        self.num_held += count
        return taken

    def hold(self, blocks: Iterable[int], now: float) -> None:
        """One more hold on each; a pin's time begins anew."""
        refs, lives = self._refs, self._lives
        for block in blocks:
            count = refs[block]
            refs[block] = count + 1
            if not count:
                self.num_held += 1
            if lives and block in lives:
                self._renew(block, now)

    def release(self, blocks: Iterable[int], now: float) -> None:
        """One hold less on each, ends before beginnings. What nobody holds is cached if the tree has it, else free."""
        refs, tree = self._refs, self._tree
        self._last_use += 1
        for block in blocks:
            count = refs[block] - 1
            assert count >= 0, f"block {block} is released more often than it was held"
            refs[block] = count
            if count:
                continue
            self.num_held -= 1
            if block not in tree:
                self._free.append(block)
                continue
            self._used[block] = self._last_use
            if self._rank[block] == EXPIRED:  # used after its time had passed: from now on a block like any other
                self._rank[block] = UNPINNED
            if block in self._lives:
                self._renew(block, now)
            if tree.is_leaf(block):
                self._offer(block)

    def pin(self, block: int, rank: int, ttl: float | None, now: float) -> None:
        """Give a block in the tree a rank, 0 to unpin."""
        self._rank[block] = UNPINNED + rank
        self._lives.pop(block, None)
        if ttl is not None:
            self._lives[block] = (now, ttl)
            self._renew(block, now)
        if self._is_evictable(block):
            self._offer(block)

    def pin_of(self, block: int) -> int:
        """The block's pin rank; 0 if it has none."""
        return max(self._rank[block] - UNPINNED, 0)

    def drop(self, block: int, now: float) -> None:
        """Evict this block out of turn. It must be a cached leaf."""
        assert self._is_evictable(block)
        self._forget(block, now)
        self._free.append(block)

    def uproot(self, block: int, now: float) -> list[int]:
        """Take a block out of the tree with all that continues it; answers them. What nobody holds is free."""
        gone = [block]
        for each in gone:
            gone += self._tree.children(self._tree.node(each))
        for each in reversed(gone):
            self._forget(each, now)
            if not self._refs[each]:
                self._free.append(each)
        return gone

    def abandon(self, block: int) -> None:
        """The tree has let go of this block: what nobody holds is free."""
        self._rank[block] = UNPINNED
        self._lives.pop(block, None)
        if not self._refs[block]:
            self._free.append(block)

    def _is_evictable(self, block: int) -> bool:
        return not self._refs[block] and block in self._tree and self._tree.is_leaf(block)

    def _entry(self, block: int) -> int:
        return ((self._rank[block] << USE_BITS | self._used[block]) << BLOCK_BITS) | block

    def _offer(self, block: int) -> None:
        """Put an evictable block into the order of eviction."""
        heappush(self._order, self._entry(block))
        if len(self._order) > 1024 + self.num_cached * 5 // 4:  # outdated entries are a fifth: sweep them out
            self._order = [entry for entry in self._order if self._is_current(entry)]
            heapify(self._order)

    def _is_current(self, entry: int) -> bool:
        block = entry & ((1 << BLOCK_BITS) - 1)
        return self._is_evictable(block) and entry == self._entry(block)

    def _evict(self, now: float) -> int:
        while not self._is_current(entry := heappop(self._order)):
            pass
        block = entry & ((1 << BLOCK_BITS) - 1)
        self._forget(block, now)
        return block

    def _forget(self, block: int, now: float) -> None:
        self._history.removed(int.from_bytes(self._tree.node(block), "big"), self._tree.key(block), now)
        parent = self._tree.remove(block)
        self._rank[block] = UNPINNED
        self._lives.pop(block, None)
        if parent != NO_BLOCK and self._is_evictable(parent):
            self._offer(parent)

    def _renew(self, block: int, now: float) -> None:
        seconds = self._lives[block][1]
        self._lives[block] = (now + seconds, seconds)
        heappush(self._expiries, (now + seconds, block))
        if len(self._expiries) > 1024 + 2 * len(self._lives):
            self._expiries = [(life[0], block) for block, life in self._lives.items()]
            heapify(self._expiries)

    def _expire(self, now: float) -> None:
        """End the pins whose time has passed: their blocks are the first to go."""
        while self._expiries and self._expiries[0][0] <= now:
            when, block = heappop(self._expiries)
            if self._lives.get(block, (None,))[0] != when:
                continue  # renewed or unpinned since
            del self._lives[block]
            self._rank[block] = EXPIRED
            if self._is_evictable(block):
                self._offer(block)

    def check(self, holds: dict[int, int]) -> None:
        """Every block is in exactly one state with the given holds, and every evictable block is in the order."""
        free, aside = set(self._free), set(self._aside)
        assert len(free) == len(self._free), "a block is free twice"
        assert len(aside) == len(self._aside), "a block is set aside twice"
        assert not free & aside and 0 <= self.num_owed <= self.most_blocks, "more is set aside than is to be"
        assert self.num_held == sum(1 for refs in self._refs if refs)
        current = {entry for entry in self._order if self._is_current(entry)}
        expiries = set(self._expiries)
        for block in range(self.most_blocks):
            assert self._refs[block] == holds.get(block, 0), f"block {block} has holds that nobody owns"
            is_blank = not self._refs[block] and block not in self._tree
            assert (block in free or block in aside) == is_blank, f"block {block} is lost"
            assert not self._is_evictable(block) or self._entry(block) in current, f"block {block} can never be evicted"
            parent = self._tree.parent(block)
            assert parent == NO_BLOCK or not self._refs[block] or self._refs[parent], (
                f"block {block} lost its beginning"
            )
        assert all((life[0], block) in expiries for block, life in self._lives.items())
        assert all(block in self._tree for block in self._lives)
