"""How much of the prompts a cache of a given size would have: the trace again, through Quire's own tree and eviction.

Requests hold their blocks from their start until their end, as far as the trace tells when that was; a request that
does not fit waits for the next one to end. A prompt's KV counts as computed when it arrives: whoever has the same
beginning meanwhile waits for it in a real engine too, and computes it only once.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.advisor.prefixes import Prefix
from quire.advisor.workload import Call, Workload
from quire.cache.kv_cache import KVCache, Lease
from quire.types.request import CacheKey, Pin

NUM_SIZES = 9


@dataclass(frozen=True, slots=True)
class Hits:
    """What a cache of so many blocks found."""

    num_blocks: int
    queried_tokens: int
    hit_tokens: int
    num_waited: int = 0  # calls that had to wait for room
    num_refused: int = 0  # calls that never fit

    @property
    def rate(self) -> float:
        """Share of prompt tokens that need not be computed."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(slots=True)
class _Running:
    call: Call
    lease: Lease
    known: array[int]


@dataclass(slots=True)
class Replay:
    """One pass over a workload. `pins`: of calls by place, what is to be kept."""

    cache: KVCache
    pins: Mapping[int, Pin] = field(default_factory=dict)
    num_waited: int = 0
    num_refused: int = 0
    _running: dict[int, _Running] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)

    def run(self, calls: Sequence[Call]) -> Hits:
        """Serve them all."""
        queried = hit = 0
        for place, call in sorted(enumerate(calls), key=lambda pair: pair[1].started):
            self._end_until(call.started)
            found = self._start(place, call)
            if found is None:
                self.num_refused += 1
                continue
            queried, hit = queried + call.num_prompt, hit + found
        self._end_until(float("inf"))
        return Hits(self.cache.num_blocks, queried, hit, self.num_waited, self.num_refused)

    def _start(self, place: int, call: Call) -> int | None:
        """How many tokens it found; None: it can never run."""
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
        pins = (self.pins[place],) if place in self.pins else ()
        lease = cache.lease(hit, call.marks, call.key, now, pins)
        cache.extend(lease, call.num_prompt, now)
        computed = min(call.num_prompt, len(lease.blocks) * cache.block_tokens)
        cache.seal(lease, call.marks, computed, now)
        self._running[place] = _Running(call, lease, call.marks + call.output)
        ends = max(now, call.time + (call.seconds or 0.0))
        heapq.heappush(self._ends, (ends, place))
        return lease.num_hit

    def _end_until(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self._end_next()

    def _end_next(self) -> float:
        """The last token of an answer is never computed: there is nothing after it."""
        when, place = heapq.heappop(self._ends)
        running, cache = self._running.pop(place), self.cache
        computed = max(len(running.known) - 1, running.call.num_prompt)
        if not cache.extend(running.lease, computed, when):
            computed = running.call.num_prompt
        computed = min(computed, len(running.lease.blocks) * cache.block_tokens)
        cache.release(running.lease, running.known, computed, when, running.call.session)
        return when


def simulate_hits(
    workload: Workload, num_blocks: int, block_tokens: int = 16, pins: Mapping[int, Pin] | None = None
) -> Hits:
    """What a cache of this size would find."""
    return Replay(KVCache(num_blocks, block_tokens), pins or {}).run(workload.calls)


def hit_curve(workload: Workload, block_tokens: int, sizes: Sequence[int] = ()) -> list[Hits]:
    """By size: those that are given, and from one that holds the longest call to one that forgets nothing."""
    most = enough_blocks(workload, block_tokens)
    least = max((blocks_of(call, block_tokens) for call in workload.calls), default=1)
    spread = {round(least * (most / least) ** (step / (NUM_SIZES - 1))) for step in range(NUM_SIZES)}
    return [simulate_hits(workload, size, block_tokens) for size in sorted(spread | {min(s, most) for s in sizes})]


def enough_blocks(workload: Workload, block_tokens: int) -> int:
    """So many that nothing is ever evicted."""
    return sum(blocks_of(call, block_tokens) for call in workload.calls) or 1


def blocks_of(call: Call, block_tokens: int) -> int:
    """That a call needs for its prompt, its answer, and the copy of a block that it shares half of."""
    return -(-(call.num_prompt + call.num_output) // block_tokens) + 1


def pins_for(workload: Workload, prefixes: Sequence[Prefix]) -> dict[int, Pin]:
    """Pins for the calls that begin with one of these, by their places."""
    wanted: dict[CacheKey, list[tuple[int, int]]] = {}
    for prefix in prefixes:
        example = workload.calls[prefix.example]
        wanted.setdefault(example.key, []).append((prefix.end, example.marks[prefix.end - 1]))
    found: dict[int, Pin] = {}
    for place, call in enumerate(workload.calls):
        ends = [end for end, mark in wanted.get(call.key, ()) if end <= call.num_prompt and call.marks[end - 1] == mark]
        if ends:
            found[place] = Pin(0, max(ends))
    return found
