"""An obviously correct cache: a dict from token tuples to blocks, searched in full for every query.

It is the oracle of the property tests: the same rules of eviction without the data structures that make them fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.types.request import CacheKey, Pin

Path = tuple[CacheKey, tuple[int, ...]]  # all tokens from the first to the block's last


@dataclass(eq=False)
class Block:
    refs: int = 1
    path: Path | None = None
    rank: int = 1  # 0 expired, 1 unpinned, 1 + pin
    used: int = 0
    ttl: float | None = None
    expires: float = 0.0


@dataclass(eq=False)
class NaiveLease:
    key: CacheKey
    pins: tuple[Pin, ...]
    blocks: list[Block]
    path: list[Block]
    source: Block | None = None
    is_private: bool = False

    def twins(self) -> list[Block]:
        return [ours for ours, block in zip(self.path, self.blocks, strict=False) if ours is not block]


@dataclass
class NaiveCache:
    num_blocks: int
    block_tokens: int
    nodes: dict[Path, Block] = field(default_factory=dict)
    leases: list[NaiveLease] = field(default_factory=list)
    sessions: dict[str, list[Block]] = field(default_factory=dict)
    uses: int = 0
    most_blocks: int = 0
    num_retired: int = 0

    def held(self) -> set[Block]:
        mine = [
            b for lease in self.leases for b in [*lease.blocks, *lease.path, *([lease.source] * bool(lease.source))]
        ]
        return {block for block in [*mine, *(b for held in self.sessions.values() for b in held)] if block.refs}

    def num_free(self) -> int:
        return max(self.most_blocks, self.num_blocks) - self.num_retired - len(self.held() | set(self.nodes.values()))

    def parent(self, path: Path) -> tuple[int, ...]:
        return path[1][: (len(path[1]) - 1) // self.block_tokens * self.block_tokens]

    def children(self, key: CacheKey, parent: tuple[int, ...]) -> list[Path]:
        return [path for path in self.nodes if path[0] == key and self.parent(path) == parent]

    def longest(self, tokens: tuple[int, ...], key: CacheKey) -> int:
        """Return the longest common prefix of these tokens and any stored path."""
        best = 0
        for owner, path in self.nodes:
            shared = next((i for i, (a, b) in enumerate(zip(tokens, path, strict=False)) if a != b), None)
            best = max(best, (min(len(tokens), len(path)) if shared is None else shared) if owner == key else 0)
        return best

    def is_evictable(self, path: Path) -> bool:
        return not self.nodes[path].refs and not self.children(path[0], path[1])

    def take(self, count: int, now: float) -> list[Block] | None:
        while count and count > self.num_blocks - len(self.held()):
            if not self.sessions:
                return None
            self.release(self.sessions.pop(next(iter(self.sessions))), now)
        self.evict(count - self.num_free(), now)
        return [Block() for _ in range(count)]

    def evict(self, count: int, now: float) -> None:
        if count > 0:
            for block in self.nodes.values():
                if block.ttl is not None and block.expires <= now:
                    block.rank, block.ttl = 0, None
        for _ in range(count):
            evictable = [path for path in self.nodes if self.is_evictable(path)]
            del self.nodes[min(evictable, key=lambda path: (self.nodes[path].rank, self.nodes[path].used))]

    def resize(self, num_blocks: int, now: float) -> None:
        """Free retired blocks when growing; retire blocks when shrinking."""
        self.num_blocks = num_blocks
        self.num_retired = min(self.num_retired, self.most_blocks - num_blocks)
        self.retire(now)

    def retire(self, now: float) -> None:
        if self.num_retired == self.most_blocks - self.num_blocks:
            return
        while len(self.held()) > self.num_blocks and self.sessions:
            self.release(self.sessions.pop(next(iter(self.sessions))), now)
        unheld = self.most_blocks - self.num_retired - len(self.held())
        count = min(self.most_blocks - self.num_blocks - self.num_retired, unheld)
        self.evict(count - self.num_free(), now)
        self.num_retired += count

    def hold(self, blocks: list[Block], now: float) -> None:
        for block in blocks:
            block.refs += 1
            if block.ttl is not None:
                block.expires = now + block.ttl

    def release(self, blocks: list[Block], now: float) -> None:
        self.uses += 1
        for block in blocks:
            block.refs -= 1
            if not block.refs and block.path in self.nodes:
                block.used = self.uses
                block.rank = block.rank or 1
                if block.ttl is not None:
                    block.expires = now + block.ttl

    def pin(self, block: Block, rank: int, ttl: float | None, now: float) -> None:
        block.rank, block.ttl, block.expires = 1 + rank, ttl, now + (ttl or 0)

    def pin_range(self, pins: tuple[Pin, ...], blocks: list[Block], now: float) -> None:
        """Give the blocks that a pin overlaps its rank. `blocks` are in order from the first token."""
        for pin in pins:
            for block in blocks:
                assert block.path is not None
                end = len(block.path[1])
                begin = (end - 1) // self.block_tokens * self.block_tokens
                if pin.start < begin + self.block_tokens and pin.end > begin and 1 + pin.rank >= block.rank:
                    self.pin(block, pin.rank, pin.ttl, now)

    def lease(
        self, whole: list[Path], source: Path | None, key: CacheKey, pins: tuple[Pin, ...], now: float
    ) -> NaiveLease:
        blocks = [self.nodes[path] for path in whole]
        self.hold(blocks, now)
        lease = NaiveLease(key, pins, list(blocks), list(blocks))
        self.leases.append(lease)
        if source is not None:
            lease.source = self.nodes[source]
            self.hold([lease.source], now)
            target = self.take(1, now)
            if target is None:
                self.release([lease.source], now)
                lease.source = None
            else:
                lease.blocks += target
        self.pin_range(pins, lease.path, now)
        return lease

    def fork(self, lease: NaiveLease, num_tokens: int, now: float) -> NaiveLease | None:
        whole, rest = divmod(num_tokens, self.block_tokens)
        target = self.take(1, now) if rest else []
        if target is None:
            return None
        other = NaiveLease(lease.key, lease.pins, lease.blocks[:whole] + target, lease.path[:whole])
        other.is_private = lease.is_private
        other.source = lease.blocks[whole] if rest else None
        self.hold([*lease.blocks[:whole], *other.twins(), *([other.source] if other.source else [])], now)
        self.leases.append(other)
        return other

    def extend(self, lease: NaiveLease, num_tokens: int, now: float) -> bool:
        blocks = self.take(max(0, -(-num_tokens // self.block_tokens) - len(lease.blocks)), now)
        lease.blocks += blocks or []
        return blocks is not None

    def store(self, lease: NaiveLease, block: Block, tokens: tuple[int, ...], now: float) -> Block:
        path = (lease.key, tokens)
        if path in self.nodes:
            return self.nodes[path]
        block.path = path
        self.nodes[path] = block
        for other in self.children(lease.key, self.parent(path)):
            mine = self.nodes[other]
            if other != path and tokens[: len(other[1])] == other[1] and not mine.refs and mine.rank <= 1:
                del self.nodes[other]
        return block

    def seal(self, lease: NaiveLease, tokens: tuple[int, ...], computed: int, now: float) -> None:
        if lease.source is not None:
            self.release([lease.source], now)
            lease.source = None
        if lease.is_private:
            return
        first = len(lease.path)
        for index in range(first, computed // self.block_tokens):
            block = self.store(lease, lease.blocks[index], tokens[: (index + 1) * self.block_tokens], now)
            if block is not lease.blocks[index]:
                self.hold([block], now)
            lease.path.append(block)
        self.pin_range(lease.pins, lease.path[first:], now)

    def finish(
        self, lease: NaiveLease, tokens: tuple[int, ...], computed: int, now: float, session: str | None
    ) -> None:
        if lease.source is not None:  # the step with the copy may have failed
            computed = min(computed, len(lease.path) * self.block_tokens)
        self.seal(lease, tokens, computed, now)
        self.leases.remove(lease)
        tail: list[Block] = []
        if computed % self.block_tokens and not lease.is_private:
            begin = tokens[: computed // self.block_tokens * self.block_tokens]
            siblings = self.children(lease.key, begin)
            covering = sorted(path for path in siblings if path[1][:computed] == tokens[:computed])
            if covering:
                tail = [self.nodes[covering[0]]]
            else:
                tail = [self.store(lease, lease.blocks[len(lease.path)], tokens[:computed], now)]
                self.pin_range(lease.pins, tail, now)
        if session is not None and not lease.is_private:
            kept = lease.path + tail
            self.hold(kept, now)
            before = self.sessions.pop(session, [])
            self.sessions[session] = kept
            self.release(before, now)
        self.release(lease.twins(), now)
        self.release(lease.blocks, now)

    def clear(self, now: float) -> None:
        for session in list(self.sessions):
            self.release(self.sessions.pop(session), now)
        for lease in self.leases:
            self.release(lease.twins(), now)
            lease.path = lease.blocks[: len(lease.path)]
            lease.is_private = True
        self.nodes.clear()
        for block in self.held():
            block.rank, block.ttl = 1, None
