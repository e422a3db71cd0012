"""Output of one sample as the engine reports it. Named tuples: there is one for every running request in every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.types.request import FinishReason
from quire.types.step import DraftCount, Outcome, TokenLogprobs

new_tuple = tuple.__new__  # builds a named tuple without its own constructor, in half the time


class Tokens(NamedTuple):
    """New tokens of a sample that continues."""

    request_id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_hit: int = 0  # prompt tokens that came from the prefix tree
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_forced: int = 0  # of these tokens, how many a grammar forced: all or none
    drafts: tuple[DraftCount, ...] = ()  # verified with these tokens


class Finished(NamedTuple):
    """The last tokens of a sample, and why it ended."""

    request_id: str
    sample: int
    reason: FinishReason
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_hit: int = 0
    num_forced: int = 0
    waited: float = 0.0  # seconds in the queue before it first ran
    drafts: tuple[DraftCount, ...] = ()
    vector: bytes = b""  # the answer of a pooled request: float32


class OutcomeSplit(NamedTuple):
    """Outcomes of samples that continue, as messages; those of samples that ended; and the tokens in both."""

    ongoing: list[Tokens]
    ended: list[Outcome]
    num_output: int
    num_forced: int


def split_outcomes(outcomes: Iterable[Outcome]) -> OutcomeSplit:
    """Separate the outcomes of samples that continue, as Tokens, from the last outcomes of samples that ended."""
    ongoing: list[Tokens] = []
    ended: list[Outcome] = []
    num_output = num_forced = 0
    add = ongoing.append
    for outcome in outcomes:
        request_id, sample, tokens, logprobs, finish, error, hit, forced, prompt_logprobs, _, drafts, _ = outcome
        num_output += len(tokens)
        num_forced += forced
        if error is None and finish is None:  # hot path, up to a thousand times a step
            add(new_tuple(Tokens, (request_id, sample, tokens, logprobs, hit, prompt_logprobs, forced, drafts)))
        else:
            ended.append(outcome)
    return OutcomeSplit(ongoing, ended, num_output, num_forced)
