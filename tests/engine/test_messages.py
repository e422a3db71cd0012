"""Outcomes of the scheduler as messages of the engine."""

import pytest

from quire.engine.messages import Failed, Finished, Tokens, news_of
from quire.types.errors import StepFailed
from quire.types.request import FinishReason
from quire.types.step import Outcome, TokenLogprobs

pytestmark = pytest.mark.pure

LOGPROBS = (TokenLogprobs(5, -0.5),)


def test_each_outcome_is_one_message_and_ends_are_separate():
    error = StepFailed("broken")
    news = news_of(
        [
            Outcome("a", 1, (5,), LOGPROBS),
            Outcome("b", 0, (6, 7), LOGPROBS, FinishReason.STOP, num_hit=8, num_forced=2, waited=0.5),
            Outcome("c", 0, error=error, num_hit=3),
            Outcome("d", 2, (8,), num_hit=4, num_forced=1, prompt_logprobs=LOGPROBS),
        ]
    )
    assert news.ongoing == [
        Tokens("a", 1, (5,), logprobs=LOGPROBS),
        Tokens("d", 2, (8,), num_hit=4, num_forced=1, prompt_logprobs=LOGPROBS),
    ]
    assert all(type(each) is Tokens for each in news.ongoing)
    finished = Finished("b", 0, FinishReason.STOP, (6, 7), LOGPROBS, num_hit=8, num_forced=2, waited=0.5)
    assert news.ended == [finished, Failed("c", 0, error)]
    assert (news.num_output, news.num_forced) == (4, 3)
