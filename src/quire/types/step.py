"""All that the scheduler and the runner say to each other: a `StepPlan` goes down, a `StepResult` comes up.

`Part`, `PartResult` and `Outcome` are tuples with names, not dataclasses: a step of 1,000 requests makes 1,000 of each,
and a frozen dataclass of six fields takes three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.types.errors import QuireError
from quire.types.request import FinishReason, SamplingParams


class Part(NamedTuple):
    """One request's share of a step."""

    request_id: str
    row: int
    start: int  # position of the first token computed in this step
    tokens: tuple[int, ...] | None  # prompt chunk, forced tokens or drafts; None: the row's last sampled token
    num_logits: int  # of the last positions, how many yield a distribution: 0 mid-prompt, 1, or 1 + number of drafts
    new_blocks: tuple[int, ...]  # appended to the row's block table
    scores_prompt: bool = False  # besides, every position tells how likely the prompt's next token was

    @property
    def num_tokens(self) -> int:
        """Computed in this step."""
        return 1 if self.tokens is None else len(self.tokens)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The last of its tokens, as many as it has distributions but one: they may turn out wrong."""
        return self.tokens[len(self.tokens) - self.num_logits + 1 :] if self.tokens and self.num_logits else ()


@dataclass(frozen=True, slots=True)
class Join:
    """A request takes a row: what the device must know of it before its first part."""

    request_id: str
    row: int
    sampling: SamplingParams
    sample: int  # which of the request's `n` samples this is
    tokens: tuple[int, ...]  # known so far: the prompt, and after a preemption the output too
    num_prompt: int
    stops: frozenset[int] = frozenset()  # tokens that end it; not to be sampled before min_tokens


class CopyBlock(NamedTuple):
    """Copy the first `num_tokens` slots of one block to another, before anything is computed in this step."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows whose block tables begin with the same `num_blocks` blocks. A row without a part in the step is ignored."""

    rows: tuple[int, ...]
    num_blocks: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Rows leave, rows join, blocks are copied, then every part is computed; steps run in their order."""

    number: int
    parts: tuple[Part, ...] = ()
    joins: tuple[Join, ...] = ()
    leaves: tuple[int, ...] = ()  # rows given up since the last plan
    copies: tuple[CopyBlock, ...] = ()
    groups: tuple[SharedPrefix, ...] = ()
    num_tokens: int = 0


class TokenLogprobs(NamedTuple):
    """A token's log probability and the likeliest alternatives at its position."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PartResult(NamedTuple):
    """What became of one part, in the order of the plan's parts."""

    tokens: tuple[int, ...] = ()  # accepted: drafts that held, then one sampled; empty mid-prompt
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: QuireError | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of a part that scores: one for each position with a next token


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to the plan with the same number."""

    number: int
    parts: tuple[PartResult, ...]
    seconds: float = 0.0  # the time that this step took; the scheduler learns its rate from it
    busy_seconds: float = 0.0  # of it, that the device was at it


class Outcome(NamedTuple):
    """News of one sample of a request: output tokens, and in the last one how it ended."""

    request_id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: FinishReason | None = None
    error: QuireError | None = None
    num_hit: int = 0  # prompt tokens that came from the prefix tree
    num_forced: int = 0  # output tokens that a grammar forced
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the prompt's tokens but the first, as they become known
    waited: float = 0.0  # of a last one: seconds in the queue before it first ran
