"""What the scheduler and the runner exchange: a `StepPlan` goes down, a `StepResult` comes up.

`Part`, `PartResult` and `Outcome` are named tuples, not dataclasses: a step of 1,000 requests builds 1,000 of each, and
a frozen dataclass of six fields takes three times as long to build. The functions `decode_part`, `draft_part`,
`one_token_result`, `one_token_results`, `verified_result` and `token_outcome` build the most frequent ones faster than
their classes do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quire.types.errors import QuireError
from quire.types.request import FinishReason, SamplingParams
from quire.types.source import SourceBlocks
from quire.types.speech_rules import SpeechRules

new_tuple = tuple.__new__  # builds a named tuple of seven fields in 150 ns; its own constructor takes 260 ns


class Part(NamedTuple):
    """One request's share of a step."""

    request_id: str
    row: int
    start: int  # position of the first token computed in this step
    tokens: tuple[int, ...] | None  # prompt chunk, forced tokens or drafts; None: the row's last sampled token
    num_logits: int  # how many of the last positions yield logits: 0 mid-prompt, 1, or 1 + number of drafts
    new_blocks: tuple[int, ...]  # appended to the row's block table
    scores_prompt: bool = False  # every position also yields the log probability of the prompt's next token
    is_pooled: bool = False  # the result is a vector, once the whole prompt is computed
    second_at: int = 0  # position of the first token of the second of two texts; 0: there is one text

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return 1 if self.tokens is None else len(self.tokens)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The last `num_logits` - 1 tokens, which the result accepts or rejects."""
        return self.tokens[len(self.tokens) - self.num_logits + 1 :] if self.tokens and self.num_logits else ()


def decode_part(request_id: str, row: int, start: int, new_blocks: tuple[int, ...] = ()) -> Part:
    """Return the part of a plain decode: compute the row's last sampled token and sample the next one."""
    return new_tuple(Part, (request_id, row, start, None, 1, new_blocks, False, False, 0))


def draft_part(request_id: str, row: int, start: int, tokens: tuple[int, ...]) -> Part:
    """Return the part of a request's newest token and drafts, all of which yield logits."""
    return new_tuple(Part, (request_id, row, start, tokens, len(tokens), (), False, False, 0))


@dataclass(frozen=True, slots=True)
class Join:
    """A request takes a row: what the device needs before the request's first part."""

    request_id: str
    row: int
    sampling: SamplingParams
    sample: int  # index among the request's `n` samples
    tokens: tuple[int, ...]  # known so far: the prompt, and after a preemption the output too
    num_prompt: int
    stops: frozenset[int] = frozenset()  # tokens that end it; not sampled before min_tokens
    source: SourceBlocks | None = None  # None: the model has no encoder
    speech: SpeechRules | None = None
    offset: int = 0  # tokens of its text before its first one: they count in the positions of random numbers


class CopyBlock(NamedTuple):
    """Copy the first `num_tokens` slots of one block to another, before anything is computed in this step."""

    source: int
    target: int
    num_tokens: int


class TableChange(NamedTuple):
    """New blocks in a row's table of a window group, from this place on. Entries before the window are not read."""

    group: int  # index of the window group
    row: int
    first: int  # place in the table of the first of them
    blocks: tuple[int, ...]


class StateChange(NamedTuple):
    """From this step on a row writes its state to `target`. In this step it is read from `source`."""

    row: int
    source: int  # a slot; -1: the state begins with zeros
    target: int


class SaveState(NamedTuple):
    """Store a row's state after the token before `position`, which this step computes, in a slot too."""

    row: int
    position: int  # tokens of the row's text that the state has seen
    slot: int


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows whose block tables begin with the same `num_blocks` blocks. A row without a part in the step is ignored."""

    rows: tuple[int, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: rows leave, rows join, blocks are copied, then every part is computed. Steps run in order."""

    number: int
    parts: tuple[Part, ...] = ()
    joins: tuple[Join, ...] = ()
    leaves: tuple[int, ...] = ()  # rows released since the last plan
    copies: tuple[CopyBlock, ...] = ()
    groups: tuple[SharedPrefix, ...] = ()
    num_tokens: int = 0
    tables: tuple[TableChange, ...] = ()  # of window groups; tables of all tokens change by Part.new_blocks
    window_copies: tuple[tuple[CopyBlock, ...], ...] = ()  # for each window group, if any has some
    states: tuple[StateChange, ...] = ()
    saves: tuple[SaveState, ...] = ()


class TokenLogprobs(NamedTuple):
    """A token's log probability and the most likely alternatives at its position."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PartResult(NamedTuple):
    """The result of one part, in the order of the plan's parts."""

    tokens: tuple[int, ...] = ()  # accepted drafts, then one sampled token; empty mid-prompt
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: QuireError | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of a scoring part: one for each position with a next token
    vector: bytes = b""  # of the last part of a pooled request: float32


def one_token_result(token: int) -> PartResult:
    """Return the result of a part that sampled one token and reports no log probabilities."""
    return new_tuple(PartResult, ((token,), (), None, (), b""))


def verified_result(tokens: tuple[int, ...]) -> PartResult:
    """Return the result of a part with drafts that reports no log probabilities."""
    return new_tuple(PartResult, (tokens, (), None, (), b""))


def one_token_results(tokens: Iterable[int]) -> tuple[PartResult, ...]:
    """Return `one_token_result` of each token."""
    return tuple([new_tuple(PartResult, ((token,), (), None, (), b"")) for token in tokens])


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of the plan with the same number."""

    number: int
    parts: tuple[PartResult, ...]
    seconds: float = 0.0  # duration of this step; the scheduler's time model learns from it
    busy_seconds: float = 0.0  # device-busy seconds within it
    is_typical: bool = True  # False: the device prepared something that steps like it will not wait for


PREDICTION = "prediction"  # the drafter that follows a request's own prediction of its answer


class DraftCount(NamedTuple):
    """Verified tokens of a drafter, and how many of them became output."""

    drafter: str
    num_drafted: int
    num_accepted: int


class Outcome(NamedTuple):
    """New output tokens of one sample; the last outcome of a sample also has its end."""

    request_id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: FinishReason | None = None
    error: QuireError | None = None
    num_hit: int = 0  # prompt tokens that came from the prefix tree
    num_forced: int = 0  # output tokens that a grammar forced
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of all prompt tokens but the first, as they become known
    waited: float = 0.0  # in the last outcome: seconds in the queue before the first admission
    drafts: tuple[DraftCount, ...] = ()  # verified by the step of these tokens
    vector: bytes = b""  # the answer of a pooled request: float32


def token_outcome(
    request_id: str,
    sample: int,
    tokens: tuple[int, ...],
    logprobs: tuple[TokenLogprobs, ...],
    drafts: tuple[DraftCount, ...] = (),
) -> Outcome:
    """Return the outcome of a decoding step: sampled tokens of a request that continues."""
    return new_tuple(Outcome, (request_id, sample, tokens, logprobs, None, None, 0, 0, (), 0.0, drafts, b""))
