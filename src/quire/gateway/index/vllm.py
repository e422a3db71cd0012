"""Cache events as vLLM and SGLang publish them over ZMQ, converted into lines for the index.

A message has a topic, a sequence number (8 bytes, big endian) and a batch in MessagePack: [ts, events, rank] or the
same as a map, with events BlockStored, BlockRemoved and AllBlocksCleared as arrays or maps. Their hashes are local to
the server that sends them, so digests are computed from the tokens. There are no snapshots: what was stored before the
first message, and after a gap that the server's replay does not fill, counts as not cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.gateway.index.lines import ClearedEvent, EventLine, RemovedEvent, StoredEvent
from quire.gateway.index.prefix_index import BadEvents
from quire.types.digests import block_digest, little_endian, root_digest
from quire.types.request import CacheKey

STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
REMOVED = ("block_hashes", "medium")
GPU = (None, "GPU")  # blocks of other media are not counted

Event = StoredEvent | RemovedEvent | ClearedEvent
BlockHash = int | bytes


class VllmEvents:
    """The events of one server. Keeps the digest of each of its blocks."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._digests: dict[BlockHash, bytes] = {}
        self._num_starts = 0

    def begin(self, sequence: int) -> EventLine:
        """Return the line to apply before the first message, whose number is `sequence`, and after a gap."""
        self._digests.clear()
        self._num_starts += 1
        return self._line(sequence, sequence, [], part=(1, 1))

    def convert(self, sequence: int, payload: bytes) -> EventLine:
        """Return a message as a line. Raises BadEvents if it is not one of vLLM's."""
        try:
            batch = msgspec.msgpack.decode(payload)
            events = batch["events"] if isinstance(batch, Mapping) else batch[1]
            converted = [each for event in events for each in self._convert(*_named(event))]
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise BadEvents(f"A batch of events cannot be read: {type(error).__name__}: {error}") from None
        return self._line(sequence, sequence + 1, converted)

    def _line(self, after: int, last: int, events: list[Event], part: tuple[int, int] | None = None) -> EventLine:
        epoch = f"start {self._num_starts}"
        return EventLine(epoch=epoch, after=after, last=last, block_tokens=self.block_tokens, part=part, events=events)

    def _convert(self, kind: str, fields: Mapping[str, Any]) -> list[Event]:
        if kind == "AllBlocksCleared":
            self._digests.clear()
            return [ClearedEvent()]
        if fields.get("medium") not in GPU or fields.get("group_idx"):
            return []
        if kind == "BlockRemoved":
            gone = [self._digests.pop(each, None) for each in fields["block_hashes"]]
            return [RemovedEvent(digest.hex()) for digest in gone if digest is not None]
        return self._stored(fields) if kind == "BlockStored" else []

    def _stored(self, fields: Mapping[str, Any]) -> list[Event]:
        """Return the blocks of an event, up to the first one that cannot be named by its tokens."""
        size = fields["block_size"]
        if size != self.block_tokens:
            raise BadEvents(f"A block has {size} tokens; this server's blocks have {self.block_tokens}.")
        hashes, tokens, events = fields["block_hashes"], array("I", fields["token_ids"]), []
        if len(tokens) != size * len(hashes):
            raise BadEvents(f"{len(hashes)} blocks of {size} tokens have {len(tokens)} tokens.")
        digest = self._before(fields)
        for number, block_hash in enumerate(hashes):
            if digest is None or (number and _other_keys(fields, number)):
                break  # after an unknown block, or with an image: tokens alone do not name it
            chunk = tokens[number * size : (number + 1) * size]
            parent, digest = digest, block_digest(digest, little_endian(chunk.tobytes()))
            self._digests[block_hash] = digest
            events.append(StoredEvent(digest.hex(), parent.hex(), tuple(chunk)))
        return list(events)

    def _before(self, fields: Mapping[str, Any]) -> bytes | None:
        """Return the digest before an event's first block; None if it is not known."""
        other = _other_keys(fields, 0)
        parent = fields["parent_block_hash"]
        if parent is not None:
            return None if other else self._digests.get(parent)
        if len(other) > 1 or not all(isinstance(each, str) for each in other):
            return None
        return root_digest(CacheKey(adapter=_adapter(fields), salt=other[0] if other else ""))


def _named(event: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of an event and its fields by name."""
    if isinstance(event, Mapping):
        return event["type"], event
    names = STORED if event[0] == "BlockStored" else REMOVED
    return event[0], dict(zip(names, event[1:], strict=False))


def _adapter(fields: Mapping[str, Any]) -> str:
    name, number = fields.get("lora_name"), fields.get("lora_id")
    return name if name is not None else "" if number is None else str(number)


def _other_keys(fields: Mapping[str, Any], number: int) -> Sequence[Any]:
    """Return what else a block's hash depends on, beside tokens and adapter: a salt, images."""
    keys = fields.get("extra_keys")
    return [each for each in (keys[number] or ()) if each != fields.get("lora_name")] if keys else ()
