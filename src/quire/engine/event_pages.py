"""Cache events in messages of bounded size, so that a long snapshot does not hold up the step loop."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from itertools import islice

from quire.cache.kv_cache import KVCache
from quire.engine.messages import CacheEvents, ReadEvents
from quire.types.digests import little_endian
from quire.types.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent

PAGE_EVENTS = 2048  # in one message: about 200 kB, 2 ms of the loop
MAX_SNAPSHOTS = 4  # that readers may be in at once; the oldest is dropped, and its reader begins again


class EventPages:
    """Answers ReadEvents. Used in the step loop's thread."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.epoch = secrets.token_hex(8)  # another one for every engine process
        self._snapshots: dict[int, Sequence[CacheEvent]] = {}  # by the newest event in them; in use by readers

    def read(self, question: ReadEvents) -> CacheEvents:
        """Return events after the position in the question, or a part of a snapshot."""
        after = question.after
        if question.epoch == self.epoch:
            if question.part and after in self._snapshots:
                return self._part(after, question.part)
            events = None if question.part else self._cache.history.since(after)
            if events is not None:
                events = events[:PAGE_EVENTS]
                return CacheEvents(self.epoch, after, after + len(events), events=_plain(events))
        sequence = self._cache.history.sequence
        if sequence not in self._snapshots:
            if len(self._snapshots) == MAX_SNAPSHOTS:
                del self._snapshots[next(iter(self._snapshots))]
            self._snapshots[sequence] = self._cache.snapshot()
        return self._part(sequence, 0)

    def _part(self, sequence: int, number: int) -> CacheEvents:
        """Return the part after `number` parts of a snapshot. After the last one it is forgotten."""
        events = self._snapshots[sequence]
        count = max(-(-len(events) // PAGE_EVENTS), 1)
        page = list(islice(events, number * PAGE_EVENTS, (number + 1) * PAGE_EVENTS))
        if number + 1 >= count:
            del self._snapshots[sequence]
        return CacheEvents(self.epoch, sequence, sequence, (number + 1, count), _plain(page))


def _plain(events: Sequence[CacheEvent]) -> tuple[tuple[str, bytes, bytes, bytes], ...]:
    """Return the events of blocks of all tokens as plain values."""
    plain = []
    for event in events:
        if isinstance(event, BlockStored) and not event.group:
            tokens = little_endian(array("I", event.tokens).tobytes())
            plain.append(("stored", event.digest, event.parent_digest, tokens))
        elif isinstance(event, BlockRemoved) and not event.group:
            plain.append(("removed", event.digest, b"", b""))
        elif isinstance(event, CacheCleared):
            plain.append(("cleared", b"", b"", b""))
    return tuple(plain)
