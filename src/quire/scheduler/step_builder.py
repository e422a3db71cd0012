"""A step while it is being planned, and until its results come: parts are only added, never taken back."""

from __future__ import annotations

from quire.cache.kv_cache import KVCache, Promised
from quire.config import SchedulerConfig
from quire.scheduler.request_state import RequestState
from quire.types.step import CopyBlock, Join, Part, SharedPrefix, StepPlan


class StepBuilder:
    """Collects what a `StepPlan` will say."""

    def __init__(self, number: int, config: SchedulerConfig) -> None:
        self.number = number
        self.budget = config.max_step_tokens  # tokens that still fit
        self.num_scored = (
            config.max_scored_tokens
        )  # distributions that still fit, beside the one for each row's newest token
        self.parts: list[Part] = []
        self.states: list[RequestState] = []  # whose parts these are
        self.promised: dict[RequestState, Promised] = {}  # blocks that others take for computed
        self._joins: list[Join] = []
        self._copies: list[CopyBlock] = []
        self._max_tokens = config.max_step_tokens

    def most(self, state: RequestState) -> int:
        """How many tokens of a request still fit; each token of a prompt that is to be scored needs a distribution."""
        return self.num_scored if state.must_score else self.budget

    def join(self, state: RequestState) -> None:
        """A request takes a row in this step."""
        assert state.lease is not None and not state.num_in_flight
        state.last_step = self.number
        request = state.request
        known = tuple(state.tokens) if state.num_output else request.prompt
        join = Join(state.id, state.row, request.sampling, state.sample, known, state.num_prompt, state.stops)
        self._joins.append(join)
        if state.lease.copy is not None:
            self._copies.append(state.lease.copy)

    def add(self, state: RequestState, count: int) -> None:
        """Compute `count` more known tokens of a request, and its drafts after the last of them."""
        assert state.lease is not None
        start, end = state.scheduled, state.scheduled + count
        reaches_end = end == len(state.tokens)
        drafts = state.drafts if reaches_end else ()
        # A slice of the prompt costs a fraction of one of the packed tokens, which have no objects yet.
        known = state.request.prompt[start:end] if end <= state.num_prompt else tuple(state.tokens[start:end])
        scores = state.must_score and start < state.num_prompt - 1
        self.num_scored -= count if scores else len(drafts)
        self.parts.append(
            Part(
                state.id,
                state.row,
                start,
                known + drafts,
                1 + len(drafts) if reaches_end else 0,
                state.unsent_blocks(),
                scores,
            )
        )
        self.states.append(state)
        state.scheduled = end
        state.num_in_flight += 1
        state.last_step = self.number
        if reaches_end:
            state.expected += 1
            state.is_streaming = state.is_on_device = True
            state.waits = bool(drafts) or state.request.constrained
            state.drafts = ()
            state.refresh()
        self.budget -= count + len(drafts)

    def promise(self, cache: KVCache, now: float) -> None:
        """Let others read in this step what its parts compute, those aside that are promised already. Not those of one
        token: a step in which every row has one may be computed in another order."""
        for state, part in zip(self.states, self.parts, strict=True):
            if part.num_tokens > 1 and state.lease is not None and state not in self.promised:
                self.promised[state] = cache.promise(state.lease, state.tokens, state.scheduled, now)

    def build(self, leaves: tuple[int, ...], groups: tuple[SharedPrefix, ...]) -> StepPlan:
        """The plan, frozen."""
        return StepPlan(
            number=self.number,
            parts=tuple(self.parts),
            joins=tuple(self._joins),
            leaves=leaves,
            copies=tuple(self._copies),
            groups=groups,
            num_tokens=self._max_tokens - self.budget,
        )
