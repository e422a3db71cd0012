"""Outcomes of the scheduler as messages of the engine."""

import pytest

from quire.types.errors import StepFailed
from quire.types.output import Tokens, split_outcomes
from quire.types.request import FinishReason
from quire.types.step import Outcome, TokenLogprobs

pytestmark = pytest.mark.pure

LOGPROBS = (TokenLogprobs(5, -0.5),)


def test_outcomes_of_samples_that_continue_are_tokens_and_last_ones_are_separate():
    finished = Outcome("b", 0, (6, 7), LOGPROBS, FinishReason.STOP, num_hit=8, num_forced=2, waited=0.5)
    failed = Outcome("c", 0, error=StepFailed("broken"), num_hit=3)
    forced = Outcome("d", 2, (8,), num_hit=4, num_forced=1, prompt_logprobs=LOGPROBS)
    split = split_outcomes([Outcome("a", 1, (5,), LOGPROBS), finished, failed, forced])
    assert split.ongoing == [
        Tokens("a", 1, (5,), logprobs=LOGPROBS),
        Tokens("d", 2, (8,), num_hit=4, num_forced=1, prompt_logprobs=LOGPROBS),
    ]
    assert all(type(each) is Tokens for each in split.ongoing)
    assert split.ended == [finished, failed]
    assert (split.num_output, split.num_forced) == (4, 3)
