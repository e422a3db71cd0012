"""What becomes of a request's blocks and of its live state: when drafts are rejected, and when it ends.

A state cannot go back. So a part with drafts writes to a second slot, and one of the two is kept. A state is given to
the tree only if its position is certain: if no result is in flight. A request that ends while the step that computes
its last token is in flight keeps its blocks and its state until that result arrives; then the next turn of its
conversation can resume there.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.cache.kv_cache import KVCache, Lease
from quire.scheduler.admission import Admission
from quire.scheduler.request_state import Phase, RequestState
from quire.types.step import Part, PartResult


class _Ending(NamedTuple):
    lease: Lease
    computed: int
    session: str | None
    state_at: int | None = None  # position of the live state, if it is certain


class LiveStates:
    """Settles and releases leases; the scheduler does the rest."""

    def __init__(self, cache: KVCache, admission: Admission) -> None:
        self._cache = cache
        self._admission = admission
        self._closing: dict[RequestState, tuple[Lease, str | None]] = {}  # ended, one result in flight; session

    def branch(self, state: RequestState, end: int, now: float) -> None:
        """Get the blocks of drafts after token `end`, and a second slot for the state; without these, drop the drafts.

        No request is preempted for drafts.
        """
        if not state.drafts:
            return
        assert state.lease is not None
        has_blocks = self._cache.extend(state.lease, end + len(state.drafts), now, state.computed)
        if not has_blocks or (state.lease.state is not None and self._cache.branch_state(state.lease, now) is None):
            state.limit_drafts(0)
        state.update_capacity(self._cache.block_tokens)

    def settle(self, state: RequestState, part: Part, num_accepted: int, now: float) -> bool:
        """Keep the state of the computed tokens. False: there is none, since no token was sampled."""
        if state.lease is None or state.lease.state is None or not part.num_logits:
            return True
        if part.num_logits == 1:
            return num_accepted > 0
        are_accepted = num_accepted == part.num_logits
        self._cache.settle_state(state.lease, are_accepted, now)
        if not are_accepted:
            state.return_to(part.start)
        return True

    def release(self, state: RequestState, now: float, session: str | None = None, has_state: bool = True) -> None:
        """Release a running request's blocks. `has_state`: the last part that it computed has left its state."""
        assert state.lease is not None
        is_certain = has_state and not state.num_in_flight and not state.has_unwritten_state
        state_at = state.computed if is_certain else None
        self._end(state, _Ending(state.lease, state.computed, session, state_at), now)

    def finish(self, state: RequestState, now: float, has_failed: bool) -> None:
        """Release a finished request's blocks, or keep them until its last result arrives."""
        session, source = state.request.session if not state.sample else None, state.request.source
        if has_failed and source is not None and self._cache.sources is not None:
            self._cache.sources.discard(source)
        lease = state.lease
        if lease is not None and not has_failed and self._has_last_result_in_flight(state, lease):
            self._cache.seal(lease, state.tokens, state.computed, now)
            if not lease.announced_edge:  # no request waits for its blocks
                self._closing[state] = (lease, session)
                return
        self.release(state, now, session, has_state=not has_failed)

    def close(self, state: RequestState, part: Part, result: PartResult, now: float) -> None:
        """Take the last result of a finished request."""
        if state in self._closing:
            lease, session = self._closing.pop(state)
            end = part.start + part.num_tokens
            failed, computed = _Ending(lease, part.start, session), _Ending(lease, end, session, end)
            self._end(state, computed if result.error is None else failed, now)

    def _has_last_result_in_flight(self, state: RequestState, lease: Lease) -> bool:
        """Is one result in flight, of a part that computes known tokens, so that the state is known after it?"""
        if lease.state is None or state.num_in_flight != 1 or state.scheduled > len(state.tokens):
            return False
        has_computed = state.computed > lease.num_hit  # so the copies that its first step began with are done
        return has_computed and state.phase is Phase.DECODING and not state.awaits_result

    def _end(self, state: RequestState, ending: _Ending, now: float) -> None:
        lease, computed, session, state_at = ending
        self._admission.forget(lease)
        computed = min(computed, len(state.tokens))  # a stop may have cut off drafts; then the state is of no use
        self._cache.release(lease, state.tokens, computed, now, session, state_at)
