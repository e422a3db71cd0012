"""The prompt queue of a simulated engine, which counts its uncached tokens."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quire.bench.fleet.handover import Handover
from quire.bench.fleet.segment_cache import SegmentCache, Segments
from quire.bench.fleet.traffic import SimulatedRequest


@dataclass(slots=True, eq=False)
class PromptJob:
    """A prompt, or its first tokens, that a replica computes to answer it, or for another replica."""

    request: SimulatedRequest
    num_tokens: int
    handover: Handover | None = None  # the transfer of its blocks; None: this replica answers
    num_received: int = 0  # tokens whose KV another replica has sent
    num_computed_elsewhere: int = 0  # of these, tokens that the other replica computed for this request
    begun: float = 0.0
    num_done: int = 0  # tokens that were cached or are computed

    @property
    def num_left(self) -> int:
        """Tokens still to be computed."""
        return self.num_tokens - self.num_done

    @property
    def is_void(self) -> bool:
        """Return whether it is for a replica that no longer waits for it."""
        return self.handover is not None and self.handover.is_over

    @property
    def segments(self) -> Segments:
        """Return the segments that must be computed unless they are cached."""
        return () if self.num_received else self.request.segments


class PromptQueue:
    """First in, first out. Counts are updated with the queue and the cache, so a report need not visit all prompts."""

    def __init__(self, cache: SegmentCache) -> None:
        self._cache = cache
        self._jobs: deque[PromptJob] = deque()
        self._waiting: Counter[int] = Counter()  # segment -> prompts in the queue that have it
        self._tokens: dict[int, int] = {}  # of these segments
        self.num_uncached = 0  # tokens; those of a segment that several prompts have count once

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[PromptJob]:
        return iter(self._jobs)

    @property
    def first(self) -> PromptJob:
        """The first prompt."""
        return self._jobs[0]

    def append(self, job: PromptJob) -> None:
        """Add a prompt."""
        self._jobs.append(job)
        for segment, tokens in job.segments:
            self._waiting[segment] += 1
            self._tokens[segment] = tokens
            if self._waiting[segment] == 1 and segment not in self._cache:
                self.num_uncached += tokens

    def popleft(self) -> PromptJob:
        """Take the first prompt."""
        job = self._jobs.popleft()
        for segment, tokens in job.segments:
            self._waiting[segment] -= 1
            if not self._waiting[segment]:
                del self._waiting[segment], self._tokens[segment]
                if segment not in self._cache:
                    self.num_uncached -= tokens
        return job

    def count_cached(self, stored: Iterable[int], evicted: Iterable[int]) -> None:
        """Update the count after a change of the cache. A segment may be both stored and evicted."""
        self.num_uncached -= sum(self._tokens.get(segment, 0) for segment in stored)
        self.num_uncached += sum(self._tokens.get(segment, 0) for segment in evicted)

    def clear(self) -> None:
        """Remove all prompts."""
        self._jobs.clear()
        self._waiting.clear()
        self._tokens.clear()
        self.num_uncached = 0
