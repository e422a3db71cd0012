"""Output of one sample as the engine reports it. Named tuples: there is one for every running request in every step."""

from __future__ import annotations

from typing import NamedTuple

from quire.types.request import FinishReason
from quire.types.step import TokenLogprobs


class Tokens(NamedTuple):
    """New tokens of a sample that continues."""

    request_id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_hit: int = 0  # prompt tokens that came from the prefix tree
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    num_forced: int = 0  # of these tokens, how many a grammar forced: all or none


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
