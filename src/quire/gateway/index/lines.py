"""The lines of an engine's event stream, and their decoder.

    GET /v1/cache/events?model=NAME&follow=true[&epoch=E&after=N]      application/x-ndjson, one line per batch

A line holds the events numbered from `after` + 1 to `last`. The reader's position is (`epoch`, `last`) of the newest
line that it has applied. Asked with a position, the stream continues there if the engine still has the events (it keeps
8,192) and has not restarted. Otherwise, and without a position, it begins with a snapshot in lines with a `part`:
[number from 1, count]; the first one empties what the reader has of this replica, and the position is known after the
last one. A line without events comes every 5 s at least. The stream ends when the engine does, or without `follow`.

Of a model with recurrent layers or windows the stream has the blocks of the other layers: a hit may then end earlier.
"""

from __future__ import annotations

import msgspec


class StoredEvent(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """A block is cached. Its parent is another block, or the root of its cache key (`types/digests.py:root_digest`)."""

    digest: str  # 32 hexadecimal digits
    parent: str
    tokens: tuple[int, ...]  # fewer than a block holds: the end of a context


class RemovedEvent(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """A block is not cached any more."""

    digest: str


class ClearedEvent(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """No block is cached any more."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of events of one replica."""

    epoch: str  # of the engine process
    after: int
    last: int
    block_tokens: int
    part: tuple[int, int] | None = None  # of a snapshot
    events: list[StoredEvent | RemovedEvent | ClearedEvent] = []


_decoder = msgspec.json.Decoder(EventLine)


def decode_line(data: bytes) -> EventLine:
    """Return the line that these bytes encode. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return _decoder.decode(data)
