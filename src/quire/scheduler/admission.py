"""Who may start: memory, rows, and a prefix that someone else is computing right now."""

from __future__ import annotations

from enum import Enum

from quire.cache.kv_cache import Hit, KVCache, Lease, Promised
from quire.cache.radix import NO_BLOCK
from quire.config import SchedulerConfig
from quire.scheduler.limits import Pace
from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import RequestState
from quire.types.errors import CacheTooSmall, ContextTooLong, Overloaded
from quire.types.request import GenerateRequest


class Verdict(Enum):
    """Why a request does not start now."""

    PASSED = "passed"  # it waits for another's blocks; whoever is behind it may go first
    FULL = "full"  # no memory: nobody goes first, or the large would starve


class Admission:
    """Decides; the scheduler acts. Holds no state of its own but the owners of leases; and for one round of admissions
    the blocks that were promised to those who run: a sum over all of them, that grows by who is admitted."""

    def __init__(self, cache: KVCache, config: SchedulerConfig, running: RunningList) -> None:
        self._cache = cache
        self._config = config
        self._running = running
        self._owners: dict[int, RequestState] = {}  # id of a lease -> whose it is
        self._promised: int | None = None
        self.max_total = min(config.max_context, cache.most_blocks * cache.block_tokens)

    def check_fits(self, request: GenerateRequest) -> None:
        """Refuse what could not be served on an empty machine. Both numbers are in the message."""
        num_known = len(request.prompt) + max(len(request.output_before(sample)) for sample in request.open_samples)
        if num_known >= self._config.max_context:
            raise ContextTooLong(num_known, self._config.max_context)
        if num_known >= self.max_total:
            raise CacheTooSmall(num_known + 1, self.max_total)

    def check_load(self, waiting: WaitingQueue, pace: Pace, request: GenerateRequest) -> None:
        """Refuse what would wait too long; but not what was accepted once."""
        if request.resumed:
            return
        is_full = len(waiting) + request.sampling.n > self._config.max_waiting
        if not is_full and self._config.pressure != "reject":
            return
        wait = self.promised_wait(waiting, pace)
        if is_full:
            raise Overloaded(
                f"{len(waiting)} requests are waiting, and {self._config.max_waiting} may.", max(wait, 1.0)
            )
        if wait > self._config.max_wait:
            public = f"The wait would be {wait:.1f} s, and {self._config.max_wait:.1f} s is the limit."
            raise Overloaded(public, max(wait - self._config.max_wait, 1.0))

    def promised_wait(self, waiting: WaitingQueue, pace: Pace) -> float:
        """Seconds that a request arriving now would wait to start, from the measured rate.

        The prompts ahead take their tokens' time; and if there are more requests than rows, rows must come free.
        """
        if not pace.tokens_per_second:
            return 0.0
        prompts = waiting.num_tokens + sum(s.remaining for s in self._running if not s.is_streaming)
        excess = len(waiting) + len(self._running) + 1 - self._config.max_rows
        return prompts / pace.tokens_per_second + max(excess, 0) * pace.service_seconds / self._config.max_rows

    def begin_round(self) -> None:
        """From here to the next call, those who run change by admissions alone."""
        self._promised = None

    def lease(self, state: RequestState, siblings: list[RequestState], now: float) -> Lease | Verdict:
        """Blocks to start with: all that is cached, and no more."""
        if state.num_in_flight:  # preempted a moment ago: its last token is still on the way
            return Verdict.PASSED
        limit = len(state.tokens) - 1  # the last known token is always computed, for its logits
        forks = not state.num_output and not state.must_score
        elder = next((s for s in siblings if s.lease is not None), None) if forks else None
        if elder is not None and elder.lease is not None:
            whole, rest = divmod(limit, self._cache.block_tokens)
            if elder.computed < limit or (rest and elder.lease.blocks[whole] in self._cache.pending):
                return Verdict.PASSED
            if not self._has_room(state, elder.lease.path[:whole], 0, now):
                return Verdict.FULL
            return self._owned(self._cache.fork(elder.lease, limit, now), state)
        hit = self._match(state)
        if hit.leader is not None:
            self._lend_urgency(state, self._owners[id(hit.leader)])
            return Verdict.PASSED
        if not self._has_room(state, hit.blocks, self._cache.cost(hit), now):
            if len(self._running):
                return Verdict.FULL
            hit = Hit(hit.blocks, len(hit.blocks) * self._cache.block_tokens, NO_BLOCK, None)  # no room for a copy
        lease = self._cache.lease(hit, state.tokens, state.request.cache, now, state.request.pins)
        return self._owned(lease, state)

    def could_start(self, state: RequestState, now: float) -> bool:
        """Is memory no reason for this request to wait?"""
        self.begin_round()
        hit = self._match(state)
        return hit.leader is not None or self._has_room(state, hit.blocks, self._cache.cost(hit), now)

    def cached_tokens(self, state: RequestState) -> int:
        """How much of a waiting request is in the tree."""
        return self._match(state).num_tokens

    def withdraw(self, promised: Promised, now: float) -> list[RequestState]:
        """Blocks were not computed that had been promised; answers who relies on them, and who promised them."""
        return [self._owners[id(lease)] for lease in self._cache.withdraw(promised, now)]

    def ended(self, lease: Lease) -> None:
        """A lease was released."""
        del self._owners[id(lease)]

    def _match(self, state: RequestState) -> Hit:
        """What is cached of a request. A prompt that is to be scored is computed, cached or not: KV tells no logits."""
        limit = state.num_scored if state.must_score else len(state.tokens) - 1
        state.hit = hit = self._cache.match(state.tokens, state.request.cache, limit, state.hit)
        return hit._replace(leader=None) if state.must_score else hit

    def _owned(self, lease: Lease | None, state: RequestState) -> Lease | Verdict:
        if lease is None:
            return Verdict.FULL
        self._owners[id(lease)] = state
        if self._promised is not None:
            self._promised += max(0, self._blocks_of(state) - len(lease.blocks))
        return lease

    def _has_room(self, state: RequestState, shared: list[int], cost: int, now: float) -> bool:
        """Are there blocks for all of the prompt, beside what those who run were admitted for?"""
        need = self._blocks_of(state) - len(shared) + cost
        if len(self._running):
            need += int(self._config.watermark * self._cache.num_blocks)
            if self._promised is None:
                self._promised = sum(max(0, self._blocks_of(s) - self._held(s)) for s in self._running)
            need += self._promised
        return self._cache.reclaim(need, now)

    def _blocks_of(self, state: RequestState) -> int:
        """Blocks that a request is admitted for: its known tokens and one more, or all that it may ever need."""
        total = state.max_total if self._config.pressure == "queue" else len(state.tokens) + 1
        return -(-total // self._cache.block_tokens)

    def _held(self, state: RequestState) -> int:
        return len(state.lease.blocks) if state.lease is not None else 0

    def _lend_urgency(self, waiting: RequestState, leader: RequestState) -> None:
        """Whoever computes for a more urgent request is as urgent."""
        if waiting.urgency < leader.urgency:
            self._running.remove(leader)
            leader.urgency = waiting.urgency
            self._running.add(leader)
