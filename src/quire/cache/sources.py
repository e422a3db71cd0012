"""The blocks of encoders' outputs: written once for each source, shared by all requests that read it.

A source is held (a running request reads it) or cached (no one does; the least recently used is evicted first).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from quire.types.errors import InvalidRequest, SourceTooLong
from quire.types.source import EncoderInput, SourceBlocks

FEATURE_BYTES = 4  # float32


@dataclass(slots=True)
class _Stored:
    blocks: tuple[int, ...]
    num_holds: int
    is_encoded: bool = False  # it has been given to the runner
    is_discarded: bool = False  # its step failed: it is found no more


class SourcePool:
    """Owns the blocks of sources."""

    def __init__(self, num_blocks: int, block_tokens: int, max_tokens: int, num_features: int = 0) -> None:
        """`num_features`: numbers of each token of a source; 0: sources are token ids."""
        self.num_blocks = num_blocks
        self._num_features = num_features
        self.max_tokens = min(max_tokens, num_blocks * block_tokens)
        self._block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._stored: dict[str, _Stored] = {}
        self._cached: OrderedDict[str, None] = OrderedDict()  # not held, least recently used first
        self._discarded: dict[str, list[_Stored]] = {}  # still held

    def check_fits(self, source: EncoderInput | None) -> None:
        """Raise if a request's source cannot be served on an empty machine."""
        if source is None:
            raise InvalidRequest("This model reads a source: text or audio for its encoder, and the request has none.",
                                 field="prompt")  # fmt: skip
        if len(source.features) != source.num_tokens * self._num_features * FEATURE_BYTES:
            reads = "sound, and no text" if self._num_features else "text, and no sound"
            raise InvalidRequest(f"This model's encoder reads {reads}.", field="prompt")
        if source.num_tokens > self.max_tokens:
            raise SourceTooLong(source.num_tokens, self.max_tokens)

    def can_hold(self, source: EncoderInput) -> bool:
        """Are there blocks for it, if cached sources are evicted?"""
        if source.digest in self._stored:
            return True
        cached = sum(len(self._stored[digest].blocks) for digest in self._cached)
        return self._num_needed(source) <= len(self._free) + cached

    def hold(self, source: EncoderInput) -> None:
        """Hold a source that `can_hold`. Its blocks are found, or taken."""
        stored = self._stored.get(source.digest)
        if stored is None:
            need = self._num_needed(source)
            while len(self._free) < need:
                digest, _ = self._cached.popitem(last=False)
                self._free += self._stored.pop(digest).blocks
            stored = self._stored[source.digest] = _Stored(tuple(self._free.pop() for _ in range(need)), 0)
        self._cached.pop(source.digest, None)
        stored.num_holds += 1

    def join(self, source: EncoderInput) -> SourceBlocks:
        """Return the blocks of a held source, and the source itself if it has yet to be encoded."""
        stored = self._stored[source.digest]
        is_new, stored.is_encoded = not stored.is_encoded, True
        return SourceBlocks(source.num_tokens, stored.blocks, source if is_new else None)

    def discard(self, source: EncoderInput) -> None:
        """Encode it again for the next request: a step that may have encoded it has failed."""
        stored = self._stored.pop(source.digest, None)
        if stored is not None:
            stored.is_discarded = True
            self._discarded.setdefault(source.digest, []).append(stored)

    def release(self, source: EncoderInput) -> None:
        """Return a hold. An unused source stays cached."""
        old = self._discarded.get(source.digest)
        stored = old[0] if old else self._stored[source.digest]
        stored.num_holds -= 1
        if stored.num_holds:
            return
        if old:
            self._free += old.pop(0).blocks
            if not old:
                del self._discarded[source.digest]
        elif stored.is_encoded:
            self._cached[source.digest] = None
        else:
            self._free += self._stored.pop(source.digest).blocks

    def _num_needed(self, source: EncoderInput) -> int:
        return -(-source.num_tokens // self._block_tokens)

    def check(self) -> None:
        """Assert that every block is free or of one source."""
        old = [each for stored in self._discarded.values() for each in stored]
        blocks = [*self._free, *(block for each in (*self._stored.values(), *old) for block in each.blocks)]
        assert sorted(blocks) == list(range(self.num_blocks))
        assert all((digest in self._cached) == (not each.num_holds) for digest, each in self._stored.items())
