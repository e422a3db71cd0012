"""Prefix-cache hit rates by cache size: replays the trace through Quire's own prefix tree and eviction.

A call holds its blocks from its start to its end, as far as the trace has these times. A call that does not fit waits
for the next one to end. A prompt's KV counts as computed on arrival: in the engine too, a second request with the same
prefix waits for the first and does not compute it again.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.advisor.shared_prefixes import Prefix
from quire.advisor.workload import TraceCall, TraceWorkload
from quire.cache.kv_cache import KVCache, Lease
from quire.types.request import CacheKey, Pin

NUM_SIZES = 9


@dataclass(frozen=True, slots=True)
class CacheHits:
    """Hits of a cache with `num_blocks` blocks."""

    num_blocks: int
    queried_tokens: int
    hit_tokens: int
    num_waited: int = 0  # calls that waited for blocks
    num_refused: int = 0  # calls larger than the cache

    @property
    def rate(self) -> float:
        """Share of the prompt tokens that need not be computed."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(slots=True)
class _RunningCall:
    call: TraceCall
    lease: Lease
    marks: array[int]  # of the prompt and the answer


@dataclass(slots=True)
class CacheReplay:
    """One pass over a workload. `pins`: by the index of a call, what it pins."""

    cache: KVCache
    pins: Mapping[int, Pin] = field(default_factory=dict)
    num_waited: int = 0
    num_refused: int = 0
    _running: dict[int, _RunningCall] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)

    def run(self, calls: Sequence[TraceCall]) -> CacheHits:
        """Replay the calls in the order in which they started."""
        queried = hit = 0
        for index, call in sorted(enumerate(calls), key=lambda pair: pair[1].started):
            self._end_until(call.started)
            num_hit = self._start(index, call)
            if num_hit is None:
                self.num_refused += 1
                continue
            queried, hit = queried + call.num_prompt, hit + num_hit
        self._end_until(float("inf"))
        return CacheHits(self.cache.num_blocks, queried, hit, self.num_waited, self.num_refused)

    def _start(self, index: int, call: TraceCall) -> int | None:
        """Start a call; return its hit in tokens. None: it is larger than the cache."""
        cache, now, has_waited = self.cache, call.started, False
        if -(-call.num_prompt // cache.block_tokens) > cache.num_blocks:
            return None
        while True:
            hit = cache.match(call.marks, call.key, call.num_prompt - 1)
            cost = cache.cost(hit) + -(-call.num_prompt // cache.block_tokens) - len(hit.blocks)
            if cache.sessions.reclaim(cost, now) or not self._ends:
                break
            has_waited = True
            now = max(now, self._end_next())
        self.num_waited += has_waited
        pins = (self.pins[index],) if index in self.pins else ()
        lease = cache.lease(hit, call.marks, call.key, now, pins)
        cache.extend(lease, call.num_prompt, now)
        computed = min(call.num_prompt, len(lease.blocks) * cache.block_tokens)
        cache.seal(lease, call.marks, computed, now)
        self._running[index] = _RunningCall(call, lease, call.marks + call.output)
        ends = max(now, call.time + (call.seconds or 0.0))
        heapq.heappush(self._ends, (ends, index))
        return lease.num_hit

    def _end_until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self._end_next()

    def _end_next(self) -> float:
        """End the next call; return the time. The KV of an answer's last token is never computed."""
        now, index = heapq.heappop(self._ends)
        running, cache = self._running.pop(index), self.cache
        computed = max(len(running.marks) - 1, running.call.num_prompt)
        if not cache.extend(running.lease, computed, now):
            computed = running.call.num_prompt
        computed = min(computed, len(running.lease.blocks) * cache.block_tokens)
        cache.release(running.lease, running.marks, computed, now, running.call.session)
        return now


def replay_cache(
    workload: TraceWorkload, num_blocks: int, block_tokens: int = 16, pins: Mapping[int, Pin] | None = None
) -> CacheHits:
    """Return the hits of a cache of this size."""
    return CacheReplay(KVCache(num_blocks, block_tokens), pins or {}).run(workload.calls)


def hit_curve(workload: TraceWorkload, block_tokens: int, sizes: Sequence[int] = ()) -> list[CacheHits]:
    """Return the hits at these sizes, and at sizes from the longest call to a cache that never evicts."""
    high = blocks_without_eviction(workload, block_tokens)
    low = max((blocks_of(call, block_tokens) for call in workload.calls), default=1)
    steps = {round(low * (high / low) ** (step / (NUM_SIZES - 1))) for step in range(NUM_SIZES)}
    return [replay_cache(workload, size, block_tokens) for size in sorted(steps | {min(s, high) for s in sizes})]


def blocks_without_eviction(workload: TraceWorkload, block_tokens: int) -> int:
    """Return the number of blocks with which nothing is ever evicted."""
    return sum(blocks_of(call, block_tokens) for call in workload.calls) or 1


def blocks_of(call: TraceCall, block_tokens: int) -> int:
    """Return the blocks that a call needs: prompt, answer, and the copy of a partly shared block."""
    return -(-(call.num_prompt + call.num_output) // block_tokens) + 1


def prefix_pins(workload: TraceWorkload, prefixes: Sequence[Prefix]) -> dict[int, Pin]:
    """Return, by index, a pin for each call that begins with one of these prefixes."""
    ends_by_key: dict[CacheKey, list[tuple[int, int]]] = {}
    for prefix in prefixes:
        example = workload.calls[prefix.example]
        ends_by_key.setdefault(example.key, []).append((prefix.end, example.marks[prefix.end - 1]))
    pins: dict[int, Pin] = {}
    for index, call in enumerate(workload.calls):
        ends = [
            end for end, mark in ends_by_key.get(call.key, ()) if end <= call.num_prompt and call.marks[end - 1] == mark
        ]
        if ends:
            pins[index] = Pin(0, max(ends))
    return pins
