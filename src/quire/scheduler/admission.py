"""Decides whether a request may start: memory, rows, and prefixes that another request is computing."""

from __future__ import annotations

from enum import Enum

from quire.cache.kv_cache import Hit, KVCache, Lease, Promise
from quire.cache.radix import common_head
from quire.config import SchedulerConfig
from quire.scheduler.limits import StepTimeModel
from quire.scheduler.live_requests import check_queue
from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import Phase, RequestState
from quire.types.errors import CacheTooSmall, ContextTooLong, InvalidRequest, TextTooLong
from quire.types.request import GenerateRequest


class Deferral(Enum):
    """Why a request is not admitted now."""

    SKIP = "skip"  # it depends on a result in flight: requests behind it may be admitted
    STOP = "stop"  # not enough free blocks: no request behind it is admitted either, or large ones would starve


class Admission:
    """Grants leases; the scheduler does the rest.

    During one round of admissions it keeps the number of blocks reserved for running requests: a sum over all of them,
    to which each admission adds.
    """

    def __init__(self, cache: KVCache, config: SchedulerConfig, running: RunningList) -> None:
        self._cache = cache
        self._config = config
        self._running = running
        self._owners: dict[int, RequestState] = {}  # by id of the lease
        self._num_reserved: int | None = None
        self.max_total = min(config.max_context, cache.most_blocks * cache.block_tokens)

    def check_fits(self, request: GenerateRequest) -> None:
        """Raise if the request could not be served on an empty machine. Both numbers are in the message."""
        if self._cache.sources is not None:
            self._cache.sources.check_fits(request.source)
        elif request.source is not None:
            raise InvalidRequest("This model has no encoder: it reads a prompt alone, no audio.", field="prompt")
        num_known = len(request.prompt) + max(
            len(request.resumed_output(sample)) for sample in request.unfinished_samples
        )
        num_new = int(not request.is_pooled)  # a token of the answer
        if num_known + num_new > self._config.max_context:
            kind = TextTooLong if request.is_pooled else ContextTooLong
            raise kind(num_known, self._config.max_context)
        if num_known + num_new > self.max_total:
            raise CacheTooSmall(num_known + num_new, self.max_total)

    def check_load(self, waiting: WaitingQueue, step_times: StepTimeModel, request: GenerateRequest) -> None:
        """Raise if the request would wait too long. A resumed request was accepted before, and is not refused."""
        check_queue(self._config, len(waiting), request, lambda: self.promised_wait(waiting, step_times))

    def promised_wait(self, waiting: WaitingQueue, step_times: StepTimeModel) -> float:
        """Return the seconds that a request arriving now would wait, from measured rates.

        This is the time to compute the prompts ahead of it, and, with more requests than rows, until a row is free.
        """
        if not step_times.tokens_per_second:
            return 0.0
        num_tokens = waiting.num_tokens + sum(s.remaining for s in self._running if s.phase is Phase.PREFILLING)
        num_excess = max(0, len(waiting) + len(self._running) + 1 - self._config.max_rows)
        row_seconds = step_times.service_seconds / self._config.max_rows
        return num_tokens / step_times.tokens_per_second + num_excess * row_seconds

    def begin_round(self) -> None:
        """Start a round: until the next call, running requests change only by admissions."""
        self._num_reserved = None

    def lease(self, state: RequestState, samples: list[RequestState], now: float) -> Lease | Deferral:
        """Return a lease on the cached prefix of a request, or why it cannot start. `samples`: all of its request.

        A request with a source holds that until its lease is forgotten.
        """
        pool, source = self._cache.sources, state.request.source
        if pool is None or source is None:
            return self._lease(state, samples, now)
        if not pool.can_hold(source):
            return Deferral.STOP
        lease = self._lease(state, samples, now)
        if isinstance(lease, Lease):
            pool.hold(source)
        return lease

    def _lease(self, state: RequestState, samples: list[RequestState], now: float) -> Lease | Deferral:
        if state.num_in_flight:  # just preempted: its last token has not arrived
            return Deferral.SKIP
        can_share = not state.num_output and not state.must_score
        elder = next((s for s in samples if s.lease is not None), None) if can_share else None
        if elder is not None and (fork := self._fork(state, elder, now)) is not None:
            return fork
        hit = self._match(state)
        if self._cache.has_states and elder is not None and elder.lease is not None:
            state.awaited = (elder.lease, len(state.tokens) - 1)
        if (leader := self._leader(state, hit)) is not None:
            self._lend_urgency(state, leader)
            return Deferral.SKIP
        can_start = self._can_start(state, hit, now)
        if not can_start:
            if self._owners:
                return Deferral.STOP
            hit = self._cache.without_copy(hit)
        lease = self._cache.lease(hit, state.tokens, state.request.cache, now, state.request.pins)
        if not can_start and _num_again(hit):
            self._cache.detach(lease, now)  # no room for its blocks beside the cached ones, which may be evicted now
        return self._register(lease, state)

    def _fork(self, state: RequestState, elder: RequestState, now: float) -> Lease | Deferral | None:
        """Return a lease that shares the prompt of another sample. None: that is not possible, but a hit may be."""
        limit, lease = len(state.tokens) - 1, elder.lease
        if lease is None or self._cache.has_states:  # a state is not shared while it runs, only from a checkpoint
            return None
        num_whole, rest = divmod(limit, self._cache.block_tokens)
        if elder.computed < limit or (rest and lease.blocks[num_whole] in self._cache.pending):
            return Deferral.SKIP
        if not self._cache.can_fork(lease, limit):
            return None
        if not self._has_room(state, lease.path[:num_whole], 0, now):
            return Deferral.STOP
        return self._register(self._cache.fork(lease, limit, now), state)

    def has_memory_for(self, state: RequestState, now: float) -> bool:
        """Are there enough blocks for this request, or does it wait for something else?"""
        self.begin_round()
        hit = self._match(state)
        return self._leader(state, hit) is not None or self._can_start(state, hit, now)

    def cached_tokens(self, state: RequestState) -> int:
        """Return how many tokens of a waiting request are in the tree."""
        return self._match(state).num_tokens

    def withdraw(self, promise: Promise, now: float) -> list[RequestState]:
        """Withdraw promised blocks that were not computed; return the requests that hold or depend on them."""
        return [self._owners[id(lease)] for lease in self._cache.withdraw(promise, now)]

    def forget(self, lease: Lease) -> None:
        """Drop a lease that is released."""
        state = self._owners.pop(id(lease))
        if self._cache.sources is not None and state.request.source is not None:
            self._cache.sources.release(state.request.source)

    def _match(self, state: RequestState) -> Hit:
        """Match a request's tokens. A prompt to be scored or pooled is computed even if cached: the cache has no
        logits and no vectors."""
        is_computed = state.must_score or state.request.is_pooled
        limit = state.num_scored if is_computed else len(state.tokens) - 1
        state.hit = hit = self._cache.match(state.tokens, state.request.cache, limit, state.hit)
        return hit._replace(leader=None) if is_computed else hit

    def _leader(self, state: RequestState, hit: Hit) -> RequestState | None:
        """Return the request that computes what this one resumes from, if it is better to wait for it."""
        if not self._cache.has_states:
            return None if hit.leader is None else self._owners[id(hit.leader)]
        if hit.leader is not None and (state.awaited is None or state.awaited[0] is not hit.leader):
            others = self._owners[id(hit.leader)].tokens
            num_common = min(common_head(state.tokens.tobytes(), others.tobytes()), len(state.tokens) - 1)
            if num_common - hit.num_tokens >= self._cache.block_tokens:
                self._cache.want(hit.leader, num_common)
                state.awaited = (hit.leader, num_common)
        if state.awaited is None:
            return None
        lease, num_common = state.awaited
        owner = self._owners.get(id(lease))
        if owner is None or lease.is_private or lease.state is None:
            return None
        made = [*lease.state.wanted, *(position for position, _ in lease.state.saved)]
        least = 1 if owner.request is state.request else self._cache.block_tokens
        gains = (position - hit.num_tokens for position in made if position <= num_common)
        return owner if max(gains, default=0) >= least else None

    def _can_start(self, state: RequestState, hit: Hit, now: float) -> bool:
        """Is there room for this request in every group?"""
        first_end = min(len(state.tokens), hit.num_tokens + self._config.max_step_tokens)
        has_room = self._has_room(state, hit.blocks, self._cache.cost(hit) + _num_again(hit), now)
        return has_room and self._cache.can_start(hit, first_end, now)

    def _register(self, lease: Lease | None, state: RequestState) -> Lease | Deferral:
        if lease is None:
            return Deferral.STOP
        self._owners[id(lease)] = state
        if self._num_reserved is not None:
            self._num_reserved += max(0, self._blocks_needed(state) - len(lease.blocks))
        return lease

    def _has_room(self, state: RequestState, shared: list[int], cost: int, now: float) -> bool:
        """Are there blocks for the whole prompt, beside those reserved for running requests?"""
        need = self._blocks_needed(state) - len(shared) + cost
        if len(self._running):
            need += int(self._config.watermark * self._cache.num_blocks)
            if self._num_reserved is None:
                self._num_reserved = sum(max(0, self._blocks_needed(s) - self._blocks_held(s)) for s in self._running)
            need += self._num_reserved
        return self._cache.sessions.reclaim(need, now)

    def _blocks_needed(self, state: RequestState) -> int:
        """Return the blocks to reserve for a request: for its known tokens and one more, or for its maximum length."""
        total = state.max_total if self._config.pressure == "queue" else len(state.tokens) + 1
        return -(-total // self._cache.block_tokens)

    def _blocks_held(self, state: RequestState) -> int:
        return len(state.lease.blocks) if state.lease is not None else 0

    def _lend_urgency(self, waiting: RequestState, leader: RequestState) -> None:
        """Make a request as urgent as the one that waits for its blocks."""
        if waiting.urgency < leader.urgency and leader.is_running:
            self._running.remove(leader)
            leader.urgency = waiting.urgency
            self._running.add(leader)


def _num_again(hit: Hit) -> int:
    """Return how many cached blocks are computed again; the cached ones are held beside them."""
    return len(hit.path) - len(hit.blocks)
