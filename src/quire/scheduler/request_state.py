"""What the scheduler knows of one sample of a request.

    0 ............ computed ............ scheduled ............ known + expected
      KV exists             in steps that                to be scheduled
                            are planned

`known` is len(tokens); `expected` counts tokens that planned steps will sample. With no step in flight `scheduled`
equals `computed` and `expected` is 0. Only the scheduler changes a state.
"""

from __future__ import annotations

from array import array
from dataclasses import InitVar, dataclass, field

from quire.cache.kv_cache import Hit, Lease
from quire.types.errors import QuireError
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, Part, TokenLogprobs

NO_ROW = -1


@dataclass(slots=True, eq=False)
class RequestState:
    """Prompt and output of one sample, and how far each has come."""

    request: GenerateRequest
    sample: int
    arrival: int  # order of arrival
    arrived: float
    max_total: int  # tokens, prompt and output, at which it ends
    prompt: InitVar[array[int] | None] = None  # the request's, packed, if the caller has it: packing takes a while
    tokens: array[int] = field(init=False)  # known: prompt, then output
    num_prompt: int = field(init=False)
    num_resumed: int = field(init=False)  # output tokens that it came with
    id: str = field(init=False)  # of this sample, in plans
    stops: frozenset[int] = field(init=False)
    urgency: int = field(init=False)  # its priority, or that of a more urgent request that waits for its blocks

    computed: int = 0
    scheduled: int = 0
    expected: int = 0
    num_in_flight: int = 0  # parts in planned steps whose results have not come
    num_stale: int = 0  # of those, how many to ignore: they were planned on an assumption that failed
    last_step: int = 0  # number of the last step it is in
    waits: bool = False  # for a result: what comes next depends on the tokens of the step in flight
    is_streaming: bool = False  # it has nothing but its newest tokens to compute
    is_on_device: bool = False  # the next token to compute is the one its row samples last
    is_plain_decode: bool = False  # its next part is one sampled token and nothing else; kept by `refresh`
    is_over: bool = False

    row: int = NO_ROW
    hit: Hit | None = None  # of one that waits: what was found of it in the prefix tree last
    lease: Lease | None = None
    capacity: int = 0  # tokens that its blocks have room for
    num_sent_blocks: int = 0  # blocks that the runner knows of
    seal_at: int = 0  # computed tokens at which there is something to seal
    drafts: tuple[int, ...] = ()  # tried in the next step
    num_hit: int = 0  # prompt tokens that came from the prefix tree when it was first admitted
    num_charged: int = 0  # output tokens that its key has been charged for
    num_scored: int = 0  # positions of the prompt whose next token's log probability has been told
    admitted: float | None = None

    def __post_init__(self, prompt: array[int] | None) -> None:
        request = self.request
        resumed = request.output_before(self.sample)
        self.tokens = array("I", request.prompt) if prompt is None else prompt[:]
        self.tokens.extend(resumed)
        self.num_prompt = len(request.prompt)
        self.num_resumed = self.num_charged = len(resumed)
        if resumed:
            self.num_scored = self.num_prompt - 1  # it had output: all of its prompt was told
        self.id = request.sample_id(self.sample)
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self.stops = frozenset((*request.sampling.stop_token_ids, *eos))
        self.urgency = request.priority

    @property
    def remaining(self) -> int:
        """Tokens that a step could compute now."""
        return len(self.tokens) + self.expected - self.scheduled

    @property
    def must_score(self) -> bool:
        """Are log probabilities of its prompt still to be told? One sample tells them for all."""
        asked = self.request.sampling.prompt_logprobs is not None and not self.sample
        return asked and self.num_scored < self.num_prompt - 1

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def order(self) -> tuple[int, int]:
        """Place among the running: walked from the head, preempted from the tail."""
        return (self.urgency, self.arrival)

    def waited(self, now: float) -> float:
        """Seconds in the queue before it first ran, or so far."""
        return (now if self.admitted is None else self.admitted) - self.arrived

    def start(self, lease: Lease, row: int, block_tokens: int, now: float) -> None:
        """It runs, from where its hit ends."""
        self.lease, self.row, self.hit = lease, row, None
        self.computed = self.scheduled = lease.num_hit
        self.capacity = len(lease.blocks) * block_tokens
        self.seal_at = 0 if lease.copy is not None else (len(lease.path) + 1) * block_tokens
        if self.admitted is None:
            self.admitted = now
            self.num_hit = 0 if self.num_resumed else min(lease.num_hit, self.num_prompt)  # told before it was resumed

    def advance(self, part: Part, num_accepted: int) -> None:
        """A part of it was computed: all of it, less the drafts that did not hold."""
        computed = part.start + (1 if part.tokens is None else len(part.tokens))
        if part.num_logits:
            self.expected -= 1
            self.waits = False
            computed -= part.num_logits - max(num_accepted, 1)
            if not num_accepted:  # no token came: what was planned on its account is void, and it is computed again
                computed -= 1
                self.void()
                self.scheduled = computed
            self.refresh()
        if self.lease is None:  # preempted meanwhile
            self.scheduled = 0
            return
        self.computed = computed
        self.scheduled = max(self.scheduled, computed)

    def failure(self, error: QuireError) -> Outcome:
        """It ends by this."""
        return Outcome(self.request.id, self.sample, error=error, num_hit=self.num_hit)

    def void(self) -> None:
        """What was planned for it came to nothing: the results that are still to come mean nothing."""
        self.num_stale, self.expected, self.is_on_device = self.num_in_flight, 0, False

    def uncharged(self) -> int:
        """Output tokens that were not charged for until now."""
        unpaid = self.num_output - self.num_charged
        self.num_charged += unpaid
        return unpaid

    def unscored(self, part: Part, scores: tuple[TokenLogprobs, ...]) -> tuple[TokenLogprobs, ...]:
        """What is new in these: after a preemption a part may score positions a second time."""
        news = scores[max(0, self.num_scored - part.start) :]
        self.num_scored += len(news)
        return news

    def cut(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """New output up to the first token that ends the request, and why that ends it."""
        known = len(self.tokens)
        least = self.num_prompt + self.request.sampling.min_tokens
        for index, token in enumerate(tokens, 1):
            if token in self.stops and known + index > least:
                return tokens[:index], FinishReason.STOP
            if known + index >= self.max_total:
                return tokens[:index], FinishReason.LENGTH
        return tokens, None

    def unsent_blocks(self) -> tuple[int, ...]:
        """Blocks that the runner does not know of yet, and does from now on."""
        assert self.lease is not None
        blocks = tuple(self.lease.blocks[self.num_sent_blocks :])
        self.num_sent_blocks += len(blocks)
        return blocks

    def refresh(self) -> None:
        """Recompute `is_plain_decode` after a change to what it depends on."""
        is_plain = not (self.waits or self.drafts or self.num_stale or self.request.constrained)
        self.is_plain_decode = is_plain and self.is_streaming and self.is_on_device

    def check(self) -> None:
        """The counts are in their order, and a row goes with a lease."""
        assert 0 <= self.computed <= self.scheduled <= len(self.tokens) + self.expected, self.id
        assert (self.row == NO_ROW) == (self.lease is None), self.id
        assert self.num_in_flight > 0 or (self.expected == 0 and self.computed == self.scheduled), self.id
        assert self.num_stale <= self.num_in_flight
        was_plain_decode = self.is_plain_decode
        self.refresh()
        assert self.is_plain_decode == was_plain_decode and (not self.is_plain_decode or self.remaining == 1), self.id
        if self.lease is not None:
            assert self.num_sent_blocks <= len(self.lease.blocks) and self.scheduled <= self.capacity, self.id
            assert not self.is_plain_decode or self.num_sent_blocks == len(self.lease.blocks), self.id
