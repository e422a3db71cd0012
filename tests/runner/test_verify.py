"""Drafts that equal the sampled tokens hold; the fast way for whole steps and the way for one part agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runner.verify import verify, verify_all
from quire.types.step import Part, PartResult, decode_part, draft_part

pytestmark = pytest.mark.pure
TOKENS = st.integers(0, 2)  # few, so that drafts often hold


def test_tokens_are_kept_up_to_the_first_that_its_draft_does_not_equal():
    newest = np.zeros(8, np.int32)
    parts = (
        draft_part("a", 3, 10, (5, 6, 7, 8)),
        decode_part("b", 1, 4),
        Part("c", 2, 0, (1, 2, 3), 0, ()),  # inside a prompt
        Part("d", 5, 6, (1, 2, 9), 2, ()),  # a forced token before the newest one and its draft
    )
    results = verify_all(parts, [6, 7, 0, 4, 11, 9, 12], newest)
    assert results == (PartResult((6, 7, 0)), PartResult((11,)), PartResult(), PartResult((9, 12)))
    assert newest.tolist() == [0, 0, 0, 0, 0, 12, 0, 0]


@given(st.lists(st.tuples(st.lists(TOKENS, min_size=2, max_size=6), st.lists(TOKENS, min_size=6, max_size=6))))
def test_the_fast_way_agrees_with_that_of_one_part(drawn):
    parts = [draft_part(f"{row}", row, 7, tuple(known)) for row, (known, _) in enumerate(drawn)]
    sampled = [tokens[: len(known)] for known, tokens in drawn]
    newest, expected = np.zeros((2, len(parts)), np.int32)
    results = verify_all(parts, [token for tokens in sampled for token in tokens], newest)
    assert results == tuple(verify(*each, None, expected) for each in zip(parts, sampled, strict=True))
    assert newest.tolist() == expected.tolist()


def test_a_token_that_cannot_be_sampled_is_an_error_unless_it_comes_after_a_wrong_draft():
    newest = np.zeros(1, np.int32)
    part = draft_part("a", 0, 7, (5, 6, 7))
    assert verify(part, [6, -1, -1], None, newest).error is not None
    assert verify(part, [4, -1, -1], None, newest) == PartResult((4,))
