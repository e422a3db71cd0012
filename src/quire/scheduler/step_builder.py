"""A step while it is planned, and until its result arrives. Parts are added and never removed."""

from __future__ import annotations

from quire.cache.kv_cache import KVCache, Promise
from quire.config import SchedulerConfig
from quire.scheduler.request_state import RequestState
from quire.types.step import (
    CopyBlock,
    Join,
    Part,
    SaveState,
    SharedPrefix,
    StateChange,
    StepPlan,
    TableChange,
    draft_part,
)


class StepBuilder:
    """Collects the parts of a `StepPlan`."""

    def __init__(
        self, number: int, config: SchedulerConfig, cache: KVCache, now: float, is_overlapped: bool = False
    ) -> None:
        self.number = number
        self._is_overlapped = is_overlapped  # another step was in flight when it was planned
        self._cache = cache
        self._now = now
        self.budget = config.max_step_tokens  # tokens that still fit
        self.scored_budget = config.max_scored_tokens  # logits that still fit, beside those of each row's newest token
        self.parts: list[Part] = []
        self.states: list[RequestState] = []  # the request of each part
        self.promises: dict[RequestState, Promise] = {}  # blocks that other requests treat as computed
        self._joins: list[Join] = []
        self._copies: list[CopyBlock] = []
        self._window_copies: list[list[CopyBlock]] = []  # for each window group, if any has some
        self._tables: list[TableChange] = []
        self._states: list[StateChange] = []
        self._saves: list[SaveState] = []
        self._max_tokens = config.max_step_tokens

    @property
    def is_usual(self) -> bool:
        """Return whether it was planned like a plain step: with another in flight, unless all texts await results."""
        return self._is_overlapped or all(state.request.is_constrained for state in self.states)

    @property
    def has_joins(self) -> bool:
        """Return whether a request was admitted."""
        return bool(self._joins)

    def max_tokens_of(self, state: RequestState) -> int:
        """Return how many tokens of a request still fit. A prompt to be scored needs logits for every token."""
        return self.scored_budget if state.must_score else self.budget

    def join(self, state: RequestState) -> None:
        """Add an admitted request's row to the device's table."""
        request = state.request
        known = tuple(state.tokens) if state.num_output else request.prompt
        pool, source = self._cache.sources, request.source
        blocks = None if pool is None or source is None else pool.join(source)
        facts = (request.sampling, state.sample, known, state.num_prompt, state.stops)
        self._joins.append(Join(state.sample_id, state.row, *facts, blocks, request.speech))

    def add(self, state: RequestState, count: int) -> int:
        """Add a part that computes `count` more known tokens of a request, and its drafts after the last of them.

        Return the number of its tokens.
        """
        start, end = state.scheduled, state.scheduled + count
        reaches_end, is_pooled = end == len(state.tokens), state.request.is_pooled
        drafts = state.drafts if reaches_end else ()
        # A slice of the prompt is much cheaper than one of the packed tokens, which must create an int for each.
        known = state.request.prompt[start:end] if end <= state.num_prompt else tuple(state.tokens[start:end])
        scores = state.must_score and start < state.num_prompt - 1
        if not state.num_sent_blocks:
            self._add_copies(state)
        self.scored_budget -= count if scores else len(drafts)
        part = Part(
            state.sample_id,
            state.row,
            start,
            tokens=known + drafts,
            num_logits=1 + len(drafts) if reaches_end and not is_pooled else 0,
            new_blocks=state.take_unsent_blocks(),
            scores_prompt=scores,
            is_pooled=is_pooled,
        )
        self.parts.append(part)
        self.states.append(state)
        self.add_tables(state)
        self._add_state(state, end, len(drafts))
        state.schedule(end, self.number)
        self.budget -= part.num_tokens
        return part.num_tokens

    def add_drafts(self, state: RequestState, tokens: tuple[int, ...]) -> int:
        """Add the part that `schedule_drafts` returned: a newest token and its drafts. Return the number of drafts."""
        self.parts.append(draft_part(state.sample_id, state.row, state.scheduled - 1, tokens))
        self.states.append(state)
        self.budget -= len(tokens)
        self.scored_budget -= len(tokens) - 1
        return len(tokens) - 1

    def _add_copies(self, state: RequestState) -> None:
        """Add the copies that a request's first part reads. A step without parts, which it may join, makes none."""
        lease = state.lease
        assert lease is not None
        if lease.copy is not None:
            self._copies.append(lease.copy)
        for group, window in enumerate(lease.windows):
            if window.copy is not None:
                self._window_copies = self._window_copies or [[] for _ in lease.windows]
                self._window_copies[group].append(window.copy)

    def add_tables(self, state: RequestState) -> None:
        """Add the blocks of a request's window groups that the runner does not have yet."""
        assert state.lease is not None
        for group, window in enumerate(state.lease.windows):
            if window.num_sent < len(window.blocks):
                blocks = tuple(window.blocks[window.num_sent :])
                self._tables.append(TableChange(group, state.row, window.num_sent, blocks))
                window.num_sent = len(window.blocks)

    def _add_state(self, state: RequestState, end: int, num_drafts: int) -> None:
        """Add where a part that computes the known tokens up to `end` reads, writes and saves its request's state."""
        lease = state.lease
        if lease is None or lease.state is None:
            return
        source = state.take_state_source()
        if num_drafts:
            self._states.append(StateChange(state.row, lease.state.target, lease.state.branch))
        elif source is not None:
            self._states.append(StateChange(state.row, source, lease.state.target))
        for position, slot in self._cache.take_saves(lease, state.scheduled, end, self._now):
            self._saves.append(SaveState(state.row, position, slot))
            state.seal_at = min(state.seal_at, position)

    def promise(self) -> None:
        """Let other requests read in this step the blocks that its parts compute, unless promised already.

        Parts of one token are left out: a step in which every row has one token may compute them in another order.
        With states nothing is promised: they do not exist until the step is over.
        """
        if self._cache.has_states:
            return
        for state, part in zip(self.states, self.parts, strict=True):
            if part.num_tokens > 1 and state.lease is not None and state not in self.promises:
                self.promises[state] = self._cache.promise(state.lease, state.tokens, state.scheduled, self._now)

    def build(self, leaves: tuple[int, ...], groups: tuple[SharedPrefix, ...]) -> StepPlan:
        """Return the plan."""
        return StepPlan(
            number=self.number,
            parts=tuple(self.parts),
            joins=tuple(self._joins),
            leaves=leaves,
            copies=tuple(self._copies),
            groups=groups,
            num_tokens=self._max_tokens - self.budget,
            tables=tuple(self._tables),
            window_copies=tuple(map(tuple, self._window_copies)),
            states=tuple(self._states),
            saves=tuple(self._saves),
        )
