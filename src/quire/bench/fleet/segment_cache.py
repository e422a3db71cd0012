"""The prefix cache of a simulated engine: an LRU cache of prompt segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Segments = Sequence[tuple[int, int]]  # id and tokens of each, in the order of the prompt


class SegmentCache:
    """Keeps at most `most_tokens`."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._cached: OrderedDict[int, int] = OrderedDict()  # segment -> tokens, least recently used first
        self.num_tokens = 0

    def __contains__(self, segment: int) -> bool:
        return segment in self._cached

    def count(self, segments: Segments) -> int:
        """Return how many tokens at the beginning of a prompt are cached."""
        num_hit = 0
        for segment, tokens in segments:
            if segment not in self._cached:
                break
            num_hit += tokens
        return num_hit

    def use(self, segments: Segments) -> None:
        """Mark these segments as used last, the first of the prompt as the very last to be evicted."""
        for segment, _ in reversed(segments):
            if segment in self._cached:
                self._cached.move_to_end(segment)

    def store(self, segments: Segments) -> tuple[list[int], list[int]]:
        """Add a prompt; return the new segments, and the segments evicted for them."""
        stored, evicted = [], []
        for segment, tokens in segments:
            if segment not in self._cached:
                self._cached[segment] = tokens
                self.num_tokens += tokens
                stored.append(segment)
        self.use(segments)
        while self.num_tokens > self._most_tokens:
            segment, tokens = self._cached.popitem(last=False)
            self.num_tokens -= tokens
            evicted.append(segment)
        return stored, evicted

    def clear(self) -> None:
        """Remove everything."""
        self._cached.clear()
        self.num_tokens = 0
