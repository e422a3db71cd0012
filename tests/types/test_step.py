"""The fast constructors build exactly what the named tuples' own constructors build."""

import pytest

from quire.types.step import (
    Outcome,
    Part,
    PartResult,
    TokenLogprobs,
    decode_part,
    one_token_result,
    one_token_results,
    token_outcome,
)

pytestmark = pytest.mark.pure

LOGPROBS = (TokenLogprobs(5, -0.5),)


def test_a_decode_part_samples_one_token_after_the_rows_last_one():
    assert decode_part("a", 3, 17) == Part("a", row=3, start=17, tokens=None, num_logits=1, new_blocks=())
    part = decode_part("a", 3, 16, (9,))
    assert part == Part("a", row=3, start=16, tokens=None, num_logits=1, new_blocks=(9,))
    assert type(part) is Part and (part.num_tokens, part.drafts, part.scores_prompt) == (1, (), False)


def test_a_result_of_one_token_has_nothing_else():
    assert one_token_result(5) == PartResult(tokens=(5,))
    assert one_token_results([5, 6]) == (PartResult(tokens=(5,)), PartResult(tokens=(6,)))
    assert type(one_token_result(5)) is PartResult and type(one_token_results([5])[0]) is PartResult


def test_a_token_outcome_has_no_end():
    outcome = token_outcome("a", 1, (5,), LOGPROBS)
    assert outcome == Outcome("a", 1, tokens=(5,), logprobs=LOGPROBS) and type(outcome) is Outcome
