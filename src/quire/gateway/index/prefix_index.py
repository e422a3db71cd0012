"""The prefix trees of all replicas of one model: digest of a block -> the replicas that have it.

A digest names a whole path (`types/digests.py`), so there are no nodes and no links, and a prefix on 100 replicas is
one entry for each block. Looking up a prompt chains digests along its tokens until no replica has the next block. Where
a prompt departs from a cached one inside a block, the engine copies the common head: `heads.py` keeps tokens for that.

Pure: no I/O, and the clock is an argument. Used by one thread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from quire.gateway.index.heads import TOKEN_BYTES, BlockHeads
from quire.gateway.index.lines import EventLine, RemovedEvent, StoredEvent
from quire.gateway.index.masks import InternedMasks, ReplicaBits
from quire.gateway.index.pending import PendingPrefixes
from quire.gateway.index.trust import Trust
from quire.types.digests import DIGEST_BYTES, block_digest, little_endian, new_hash, path_digests, root_digest
from quire.types.request import CacheKey

PENDING_SECONDS = 10.0  # that a prefix of a request on its way counts as cached, at least
MAX_BLOCKS = 8_000_000  # of one replica: more is not believed
SWEPT = 2_000  # entries checked for retired bits with each line: 0.3 ms


class BadEvents(ValueError):
    """A replica's events contradict themselves. Its blocks are forgotten; a snapshot may restore them."""


class Position(NamedTuple):
    """Where a reader of a replica's events is."""

    epoch: str
    sequence: int


class _Reading(NamedTuple):
    """The state of one replica's stream."""

    block_tokens: int
    epoch: str
    sequence: int
    part: int = 0  # of the snapshot being read; 0: the position is known


class PrefixIndex:
    """Which replica has how much of a prompt cached."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._masks: dict[bytes, int] = {}  # digest -> replicas; may have retired bits until they are swept
        self._heads = BlockHeads()
        self._bits = ReplicaBits()
        self._interned = InternedMasks()
        self._pending = PendingPrefixes(PENDING_SECONDS)
        self._readings: dict[str, _Reading] = {}
        self._num_blocks: Counter[str] = Counter()
        self._trust: dict[str, Trust] = {}
        self._max_blocks = max_blocks
        self._sweep: tuple[int, Iterator[bytes]] | None = None  # bits that are being swept, entries to check
        self.block_sizes: dict[int, int] = {}  # tokens in a block -> number of replicas with such blocks

    @property
    def num_entries(self) -> int:
        """Distinct blocks, and those of retired bits that are not swept yet."""
        return len(self._masks)

    # ── events ──

    def apply(self, replica: str, line: EventLine) -> bool:
        """Apply a line of a replica's stream. False: events are missing, ask for a snapshot. Raises BadEvents.

        A line that was applied before is ignored, also in part. A line of another epoch is a gap.
        """
        reading = self._readings.get(replica)
        if line.part is not None:
            if line.part[0] == 1:
                self._begin(replica, line)
            elif reading is None or (reading.epoch, reading.sequence) != (line.epoch, line.last):
                return False
            elif line.part[0] != reading.part + 1:
                return reading.part == 0 or line.part[0] <= reading.part  # a repeated part; otherwise one is missing
            self._store(replica, line)
            is_last = line.part[0] >= line.part[1]
            self._readings[replica] = _Reading(line.block_tokens, line.epoch, line.last, 0 if is_last else line.part[0])
        else:
            if reading is None or reading.part or reading.epoch != line.epoch or line.after > reading.sequence:
                return False
            if line.last <= reading.sequence:
                return True
            if line.after < reading.sequence:
                return False  # part of it is known, and events have no numbers of their own
            self._store(replica, line)
            self._readings[replica] = reading._replace(sequence=line.last)
        self.sweep(SWEPT)
        return True

    def position(self, replica: str) -> Position | None:
        """Return where to continue a replica's stream; None: with a snapshot."""
        reading = self._readings.get(replica)
        return None if reading is None or reading.part else Position(reading.epoch, reading.sequence)

    def num_blocks(self, replica: str) -> int:
        """Return how many blocks a replica has."""
        return self._num_blocks[replica]

    def remove(self, replica: str) -> None:
        """Forget a replica."""
        self._pending.forget(self._bits.mask_of(replica))
        self._bits.retire(replica)
        self._num_blocks.pop(replica, None)
        self._trust.pop(replica, None)
        reading = self._readings.pop(replica, None)
        if reading is not None:
            self._count_size(reading.block_tokens, -1)

    def _begin(self, replica: str, line: EventLine) -> None:
        """Empty a replica, to receive a snapshot."""
        trust = self._trust.get(replica)
        self.remove(replica)
        if trust is not None:
            self._trust[replica] = trust
        self._bits.assign(replica)
        self._count_size(line.block_tokens, 1)
        self._readings[replica] = _Reading(line.block_tokens, line.epoch, line.last)

    def _count_size(self, block_tokens: int, change: int) -> None:
        count = self.block_sizes.get(block_tokens, 0) + change
        if count:
            self.block_sizes[block_tokens] = count
        else:
            del self.block_sizes[block_tokens]

    def _store(self, replica: str, line: EventLine) -> None:
        bit, masks, intern = self._bits.mask_of(replica), self._masks, self._interned.get
        num_blocks = self._num_blocks[replica]
        try:
            for event in line.events:
                if type(event) is StoredEvent:
                    digest, parent, chunk = _checked_block(event, line.block_tokens)
                    mask = masks.get(digest, 0)
                    if not mask & bit:
                        masks[digest] = intern(mask | bit)
                        num_blocks += 1
                        if not mask:
                            self._heads.add(parent, chunk)
                elif type(event) is RemovedEvent:
                    digest = bytes.fromhex(event.digest)
                    mask = masks.get(digest, 0)
                    if mask & bit:
                        num_blocks -= 1
                        if mask == bit:
                            del masks[digest]
                        else:
                            masks[digest] = intern(mask & ~bit)
                else:
                    num_blocks, bit = 0, self._bits.assign(replica)
            if num_blocks > self._max_blocks:
                raise BadEvents(f"{replica} claims {num_blocks} blocks; {self._max_blocks} is the limit.")
        except ValueError as error:
            self.remove(replica)
            raise error if isinstance(error, BadEvents) else BadEvents(f"{replica}: {error}") from None
        self._num_blocks[replica] = num_blocks
        if self._interned.is_full:
            self._interned.keep(set(masks.values()))

    def sweep(self, num_entries: int) -> bool:
        """Remove retired bits from up to so many entries. True: none is left."""
        if self._sweep is None:
            if not self._bits.retired:
                return True
            self._sweep = self._bits.retired, iter(list(self._masks))
        mask, digests = self._sweep
        portion = list(islice(digests, num_entries))
        for digest in portion:
            found = self._masks.get(digest, 0)
            if found & mask:
                if found & ~mask:
                    self._masks[digest] = self._interned.get(found & ~mask)
                else:
                    del self._masks[digest]
        if len(portion) < num_entries:
            self._sweep = None
            self._bits.release(mask)
        return not self._bits.retired

    # ── prompts ──

    def lookup(self, tokens: array[int], key: CacheKey, now: float = 0.0) -> dict[str, int]:
        """Return how many of these tokens each replica has cached. Replicas that have none are left out."""
        data, root = little_endian(tokens.tobytes()), root_digest(key)
        cached: dict[str, int] = {}
        self._pending.expire(now)
        for block_tokens in self.block_sizes:
            for name, count in self._lookup(data, root, block_tokens).items():
                cached[name] = max(count, cached.get(name, 0))
        for name in self._trust.keys() & cached.keys():
            cached[name] = int(cached[name] * self._trust[name].share)
        return {name: count for name, count in cached.items() if count}

    def expect(self, replica: str, tokens: array[int], key: CacheKey, now: float) -> None:
        """Count a prompt that was sent to a replica as cached there, until its events arrive or a while has passed."""
        bit, reading = self._bits.mask_of(replica), self._readings.get(replica)
        if bit and reading is not None:
            data = little_endian(tokens.tobytes())
            self._pending.add(path_digests(root_digest(key), data, reading.block_tokens * TOKEN_BYTES), bit, now)

    def observe(self, replica: str, promised: int, found: int) -> None:
        """Record the cached tokens that a replica reported with an answer, beside those that `lookup` returned."""
        if replica in self._bits:
            self._trust.setdefault(replica, Trust()).record(promised, found)

    def trust(self, replica: str) -> float:
        """Return the share of a replica's claims that counts."""
        trust = self._trust.get(replica)
        return 1.0 if trust is None else trust.share

    def _lookup(self, data: bytes, root: bytes, block_tokens: int) -> dict[str, int]:
        size, digest, num_blocks = block_tokens * TOKEN_BYTES, root, 0
        find, pending, live = self._masks.get, self._pending, self._bits.live
        expected = pending.get if pending else None
        has_all = live  # the replicas that have every block so far
        last = -1  # mask of the block before: mostly the same object
        found: dict[str, int] = {}
        for start in range(0, len(data) - size + 1, size):
            block = new_hash()  # in place of `path_digests`: a generator takes 10 % more
            block.update(digest + data[start : start + size])
            after = block.digest()
            mask = find(after, 0)
            if expected is not None:
                mask |= expected(after)
            if mask is not last and mask != last:
                last = mask
                if left := has_all & ~mask:
                    self._end(found, left, digest, data, (num_blocks, block_tokens))
                    has_all &= mask
                    if not has_all:
                        return found
            digest = after
            num_blocks += 1
        self._end(found, has_all, digest, data, (num_blocks, block_tokens))
        return found

    def _end(self, found: dict[str, int], mask: int, digest: bytes, data: bytes, path: tuple[int, int]) -> None:
        """Note the hits of replicas that do not have the next block: with the head of another one, if there is one."""
        num_blocks, block_tokens = path
        num_tokens = num_blocks * block_tokens
        rest = data[num_tokens * TOKEN_BYTES : (num_tokens + block_tokens) * TOKEN_BYTES]
        gone = []  # blocks that no replica has any more
        for size, chunk in self._heads.nearest(digest, rest) if rest else ():
            having = self._masks.get(block_digest(digest, chunk), 0)
            if not having:
                gone.append(chunk)
            elif having & mask:
                found |= dict.fromkeys(self._bits.names(having & mask), num_tokens + size)
                mask &= ~having
                if not mask:
                    break
        for chunk in gone:
            self._heads.discard(digest, chunk)
        if num_tokens:
            found |= dict.fromkeys(self._bits.names(mask), num_tokens)


def _checked_block(event: StoredEvent, block_tokens: int) -> tuple[bytes, bytes, bytes]:
    """Return digest, parent's digest and tokens of a block. Raises if the digest is not that of the two others."""
    digest, parent = bytes.fromhex(event.digest), bytes.fromhex(event.parent)
    if not 0 < len(event.tokens) <= block_tokens:
        raise BadEvents(f"A block has {len(event.tokens)} tokens; it must have 1 to {block_tokens}.")
    try:
        chunk = little_endian(array("I", event.tokens).tobytes())
    except OverflowError:
        raise BadEvents("A block has a token that is not a number from 0 to 4294967295.") from None
    if len(parent) != DIGEST_BYTES or block_digest(parent, chunk) != digest:
        raise BadEvents(f"The block {event.digest} is not the one of its tokens.")
    return digest, parent, chunk
