"""The state of one sample of a request in the scheduler.

    0 ............ computed ............ scheduled ............ known + expected
      KV exists             in planned                 not in any
                            steps                      step yet

`known` is len(tokens); `expected` counts tokens that planned steps will sample. With no step in flight, `scheduled`
equals `computed` and `expected` is 0.

    WAITING ── admit ─▶ PREFILLING ── schedule (last known token) ─▶ DECODING      any ── finish ─▶ FINISHED
       ◀──── preempt ───────┴──────────────── preempt ──────────────────┘

Only the scheduler changes a state. Its two loops over all streams write five counters directly, because method calls
there would make a step 7 % slower: `computed`, `scheduled`, `expected`, `num_in_flight` and `last_step`. All else
changes in the methods below, and those that affect `is_plain_decode` also update it.
"""

from __future__ import annotations

from array import array
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Any

from quire.cache.kv_cache import Hit, Lease
from quire.scheduler.accounting import Accounting
from quire.types.request import FinishReason, GenerateRequest
from quire.types.sampling_values import OFF
from quire.types.step import Outcome, Part, TokenLogprobs

NO_ROW = -1


class Phase(Enum):
    """Where a sample is between its arrival and its end."""

    WAITING = "waiting"  # in the queue, without row or blocks; also after a preemption
    PREFILLING = "prefilling"  # running; some known tokens are in no step yet, so nothing is sampled
    DECODING = "decoding"  # running; only its newest tokens remain to be computed
    FINISHED = "finished"


NEXT_PHASES = {
    Phase.WAITING: (Phase.PREFILLING, Phase.FINISHED),
    Phase.PREFILLING: (Phase.DECODING, Phase.WAITING, Phase.FINISHED),
    Phase.DECODING: (Phase.WAITING, Phase.FINISHED),
    Phase.FINISHED: (),
}


@dataclass(slots=True, eq=False)
class RequestState:
    """Prompt and output of one sample, and how far each is computed."""

    # identity and limits
    request: GenerateRequest
    sample: int
    arrival_index: int
    max_total: int  # prompt and output tokens at which it ends
    arrival_time: InitVar[float]
    packed_prompt: InitVar[array[int] | None] = None  # the prompt as an array, if the caller has one: packing is slow
    request_id: str = field(init=False)
    sample_id: str = field(init=False)  # its id in plans
    num_prompt: int = field(init=False)
    stops: frozenset[int] = field(init=False)
    urgency: int = field(init=False)  # its priority, or a more urgent one inherited from a request that waits for it

    # progress
    phase: Phase = Phase.WAITING
    is_plain_decode: bool = False  # its next part is its row's last sampled token and nothing else; cached, read-only
    tokens: array[int] = field(init=False)  # known: prompt, then output
    computed: int = 0
    scheduled: int = 0
    expected: int = 0
    num_in_flight: int = 0  # parts in planned steps whose results have not arrived
    last_step: int = 0  # number of the newest step that it is in
    _num_stale: int = 0  # results in flight to ignore: they were planned on an assumption that failed
    _awaits_result: bool = False  # its next part depends on tokens that a step in flight samples
    _is_next_on_device: bool = False  # the next token to compute is the last one that its row sampled
    drafts: tuple[int, ...] = ()  # verified in the next step

    # row and blocks
    row: int = NO_ROW
    lease: Lease | None = None
    hit: Hit | None = None  # while waiting: its last match in the prefix tree
    capacity: int = 0  # tokens that its blocks can hold
    num_sent_blocks: int = 0  # blocks already sent to the runner
    seal_at: int = 0  # computed tokens at which there is a block or a saved state to seal

    # reports
    accounting: Accounting = field(init=False)
    num_scored: int = 0  # prompt positions whose next token's log probability has been reported

    # states
    awaited: tuple[Lease, int] | None = None  # while waiting: a lease that begins like it; tokens that they share
    num_forced: int = 0  # output tokens that its grammar forced
    state_source: int | None = None  # the slot that its next part reads its state from, if the runner has another one

    def __post_init__(self, arrival_time: float, packed_prompt: array[int] | None) -> None:
        request = self.request
        resumed = request.resumed_output(self.sample)
        self.tokens = array("I", request.prompt) if packed_prompt is None else packed_prompt[:]
        self.tokens.extend(resumed)
        self.num_prompt = len(request.prompt)
        self.accounting = Accounting(arrival_time, num_charged=len(resumed))
        if resumed:
            self.num_scored = self.num_prompt - 1  # reported before it was resumed
        self.request_id, self.sample_id = request.id, request.sample_id(self.sample)
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self.stops = frozenset((*request.sampling.stop_token_ids, *eos))
        self.urgency = request.priority

    # ── properties ──

    @property
    def is_running(self) -> bool:
        """Does it have a row and blocks?"""
        return self.lease is not None

    @property
    def awaits_result(self) -> bool:
        """Does its next part depend on tokens that a step in flight samples?"""
        return self._awaits_result

    @property
    def has_stale_results(self) -> bool:
        """Is the next result to arrive one to ignore?"""
        return self._num_stale > 0

    @property
    def has_unwritten_state(self) -> bool:
        """Has no part of it been planned that writes its live slot?"""
        live = None if self.lease is None or self.lease.state is None else self.lease.state.target
        return self.state_source is not None and self.state_source != live

    @property
    def _has_state(self) -> bool:
        """Has it a recurrent state, which cannot be rewound after rejected drafts, or no lease?"""
        return self.lease is None or self.lease.state is not None

    @property
    def remaining(self) -> int:
        """Tokens that a step could compute now."""
        return len(self.tokens) + self.expected - self.scheduled

    @property
    def must_score(self) -> bool:
        """Are log probabilities of its prompt still to be reported? Only the first sample reports them."""
        is_requested = self.request.sampling.prompt_logprobs is not None and not self.sample
        return is_requested and self.num_scored < self.num_prompt - 1

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def order(self) -> tuple[int, int]:
        """Sort key among running requests: planned from the head, preempted from the tail."""
        return (self.urgency, self.arrival_index)

    # ── transitions ──

    def admit(self, lease: Lease, row: int, block_tokens: int, step_number: int, now: float) -> None:
        """Start running in step `step_number`, from the end of the prefix hit."""
        assert not self.num_in_flight, f"{self.sample_id} is admitted while a result is in flight"
        self._enter(Phase.PREFILLING)
        self.lease, self.row, self.hit, self.awaited = lease, row, None, None
        self.computed = self.scheduled = lease.num_hit
        self.last_step = step_number
        self.update_capacity(block_tokens)
        if lease.state is not None:
            self.state_source = lease.state.source
        has_sources = lease.copy is not None or lease.windows or lease.state is not None  # held until the first seal
        self.seal_at = 0 if has_sources else (len(lease.path) + 1) * block_tokens
        accounting = self.accounting
        if accounting.admission_time is None:
            accounting.admission_time = now
            if not self.request.resumed_output(self.sample):  # else its hit was reported before it was resumed
                accounting.num_hit = min(lease.num_hit, self.num_prompt)

    def schedule(self, end: int, step_number: int) -> None:
        """Record a part of step `step_number` that computes the tokens up to `end`, and drafts after the last one."""
        assert self.lease is not None, f"{self.sample_id} is scheduled while it is {self.phase.value}"
        self.scheduled = end
        self.num_in_flight += 1
        self.last_step = step_number
        if end == len(self.tokens) and not self.request.is_pooled:
            if self.phase is Phase.PREFILLING:
                self._enter(Phase.DECODING)
            self.expected += 1
            self._is_next_on_device = True
            self._awaits_result = bool(self.drafts) or self.request.is_constrained
            self.drafts = ()
            self._update_plain_decode()

    def preempt(self) -> None:
        """Return to the queue. Its row and blocks must be released already."""
        self._enter(Phase.WAITING)
        self._clear_row()
        self.urgency = self.request.priority
        self._awaits_result, self._is_next_on_device, self.drafts = False, False, ()
        self._update_plain_decode()

    def finish(self) -> None:
        """End. If it was running, its row and blocks must be released already."""
        self._enter(Phase.FINISHED)
        self._clear_row()
        self._update_plain_decode()

    def _enter(self, phase: Phase) -> None:
        assert phase in NEXT_PHASES[self.phase], f"{self.sample_id} cannot go from {self.phase.value} to {phase.value}"
        self.phase = phase

    def _clear_row(self) -> None:
        self.lease, self.row, self.state_source = None, NO_ROW, None
        self.computed = self.scheduled = self.capacity = self.num_sent_blocks = 0

    # ── results ──

    def advance(self, part: Part, num_accepted: int) -> None:
        """Record that a part was computed, except for its rejected drafts."""
        assert self.lease is None or part.start == self.computed, f"{self.sample_id}: parts arrived out of order"
        computed = part.start + part.num_tokens
        if part.num_logits:
            self.expected -= 1
            self._awaits_result = False
            computed -= part.num_logits - max(num_accepted, 1)
            if not num_accepted:  # no token was sampled: later parts are void, and the last token is computed again
                computed -= 1
                self.discard_in_flight()
                self.scheduled = computed
            self._update_plain_decode()
        if self.lease is None:  # preempted while the part was in flight
            self.scheduled = 0
            return
        self.computed = computed
        self.scheduled = max(self.scheduled, computed)

    def return_to(self, start: int) -> None:
        """Compute again from the start of its last part, of which it kept the state before: drafts were rejected."""
        assert self.lease is not None and self.lease.state is not None and not self.num_in_flight
        self.computed = self.scheduled = start
        self.state_source, self._is_next_on_device = self.lease.state.target, False
        self._update_plain_decode()

    def discard_in_flight(self) -> None:
        """Ignore all results in flight: they were planned on an assumption that failed."""
        self._num_stale, self.expected, self._is_next_on_device = self.num_in_flight, 0, False
        self._update_plain_decode()

    def drop_stale_result(self) -> None:
        """Ignore one result that has arrived."""
        self._num_stale -= 1
        self._update_plain_decode()

    def accept(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append output up to the first token that ends the request; return those tokens and the finish reason."""
        known = len(self.tokens)
        min_total = self.num_prompt + self.request.sampling.min_tokens
        finish = None
        for index, token in enumerate(tokens, 1):
            if token in self.stops and known + index > min_total:
                finish = FinishReason.STOP
            elif known + index >= self.max_total:
                finish = FinishReason.LENGTH
            if finish is not None:
                tokens = tokens[:index]
                break
        self.tokens.extend(tokens)
        return tokens, finish

    def force(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append output that was not sampled, as `accept` does: the next step computes it from the host's tokens."""
        self._is_next_on_device = False
        self._update_plain_decode()
        accepted, finish = self.accept(tokens)
        self.num_forced += len(accepted)
        return accepted, finish

    # ── drafts ──

    @property
    def can_draft(self) -> bool:
        """May drafts follow its newest token in the next step? With a state, only if no other token is due."""
        if self.phase is not Phase.DECODING or self.num_in_flight or self.expected or self.must_score:
            return False
        is_last, num_due = len(self.tokens) + 1 >= self.max_total, len(self.tokens) - self.scheduled
        is_due = num_due == 1 or (num_due > 1 and not self._has_state)
        return is_due and not is_last and self.request.sampling.speculate != OFF

    def suggest(self, drafts: tuple[int, ...]) -> None:
        """Set the drafts of the next step, none past the token limit. Ignored unless it is decoding."""
        if self.phase is Phase.DECODING:
            self.drafts = drafts[: max(0, self.max_total - len(self.tokens) - 1)]
            self._update_plain_decode()

    def schedule_drafts(self, most: int, step_number: int) -> tuple[int, ...]:
        """Schedule its newest token with its drafts; return them. Empty: the general path must plan it. Hot path."""
        start, drafts = self.scheduled, self.drafts
        if not drafts or self.expected or len(self.tokens) != start + 1 or self._has_state:
            return ()
        if start + len(drafts) >= self.capacity or len(drafts) > most:
            return ()
        self.scheduled, self.last_step, self.drafts = start + 1, step_number, ()
        self.num_in_flight += 1
        self.expected += 1
        self._is_next_on_device = self._awaits_result = True
        return (self.tokens[start], *drafts)

    def take_verified(self, part: Part, tokens: tuple[int, ...]) -> bool:
        """Record the tokens of a part with drafts. False: the general path must, as they may end it. Hot path."""
        if not tokens or self._num_stale or self._has_state:
            return False
        if part.tokens is None or not 1 < part.num_logits == len(part.tokens):
            return False
        if len(self.tokens) + len(tokens) >= self.max_total or not self.stops.isdisjoint(tokens):
            return False
        self.expected -= 1
        self._awaits_result = False
        self.computed = self.scheduled = part.start + len(tokens)
        self.tokens.extend(tokens)
        self._update_plain_decode()
        return True

    def limit_drafts(self, count: int) -> None:
        """Keep at most `count` drafts."""
        self.drafts = self.drafts[: max(0, count)]
        self._update_plain_decode()

    # ── blocks ──

    def update_capacity(self, block_tokens: int) -> None:
        """Recompute `capacity` after its lease was extended."""
        assert self.lease is not None
        self.capacity = len(self.lease.blocks) * block_tokens

    def update_seal_at(self, block_tokens: int) -> None:
        """Recompute `seal_at` after its full blocks were sealed."""
        assert self.lease is not None
        self.seal_at = (len(self.lease.path) + 1) * block_tokens
        state = self.lease.state
        if state is not None and state.saved and not self.lease.is_private:
            self.seal_at = min(self.seal_at, state.saved[0][0])

    def take_unsent_blocks(self) -> tuple[int, ...]:
        """Return the blocks that the runner does not have yet, and count them as sent."""
        assert self.lease is not None
        blocks = tuple(self.lease.blocks[self.num_sent_blocks :])
        self.num_sent_blocks += len(blocks)
        return blocks

    def take_state_source(self) -> int | None:
        """Return the slot that its next part reads its state from, if the runner does not have it, and forget it."""
        source, self.state_source = self.state_source, None
        return source

    # ── reports ──

    def outcome(self, tokens: tuple[int, ...] = (), **more: Any) -> Outcome:
        """Return an outcome with these tokens and other fields."""
        return Outcome(self.request_id, self.sample, tokens, num_hit=self.accounting.num_hit, **more)

    def take_output_cost(self, each: float) -> float:
        """Return the cost of the output tokens that are not charged yet, and count them as charged."""
        num_uncharged = self.num_output - self.accounting.num_charged
        self.accounting.num_charged += num_uncharged
        return each * num_uncharged / self.request.weight

    def take_unreported(self, part: Part, scores: tuple[TokenLogprobs, ...]) -> tuple[TokenLogprobs, ...]:
        """Return the scores not reported yet: after a preemption, a part may score positions a second time."""
        unreported = scores[max(0, self.num_scored - part.start) :]
        self.num_scored += len(unreported)
        return unreported

    # ── invariants ──

    def _can_decode_plainly(self) -> bool:
        is_special = self._awaits_result or self.drafts or self._num_stale or self.request.is_constrained
        return self.phase is Phase.DECODING and self._is_next_on_device and not is_special

    def _update_plain_decode(self) -> None:
        self.is_plain_decode = self._can_decode_plainly()

    def check(self) -> None:
        """Assert that counts, phase, row and cached predicate agree."""
        name = self.sample_id
        assert 0 <= self.computed <= self.scheduled <= len(self.tokens) + self.expected, name
        assert self.is_running == (self.phase in (Phase.PREFILLING, Phase.DECODING)) == (self.row != NO_ROW), name
        assert self.is_running or self.scheduled == 0, name
        assert self.num_in_flight > 0 or (self.expected == 0 and self.computed == self.scheduled), name
        assert self._num_stale <= self.num_in_flight and self.is_plain_decode == self._can_decode_plainly(), name
        assert not self.is_plain_decode or self.remaining == 1, name
        if self.lease is not None:
            assert self.num_sent_blocks <= len(self.lease.blocks) and self.scheduled <= self.capacity, name
            assert not self.is_plain_decode or self.num_sent_blocks == len(self.lease.blocks), name
            assert all(len(window.blocks) == len(self.lease.blocks) for window in self.lease.windows), name
            are_sent = all(window.num_sent == len(self.lease.blocks) for window in self.lease.windows)
            assert not self.is_plain_decode or are_sent, name
            assert not self.is_plain_decode or self.state_source is None, name
