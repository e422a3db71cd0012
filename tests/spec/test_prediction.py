"""Drafts from a request's prediction of its answer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.spec.drafter import NO_DRAFT
from quire.spec.prediction import LEAST_ADDED, LONG_MATCH, MAX_ADDED, PredictionDrafter

pytestmark = pytest.mark.pure

PROMPT = [900, 901]


@dataclass
class Answer:
    predicted: Sequence[int]
    tokens: array[int] = field(default_factory=lambda: array("I", PROMPT))
    sample_id: str = "a"


def drafter() -> PredictionDrafter[Answer]:
    return PredictionDrafter(lambda answer: (answer.predicted, len(PROMPT)))


def drafts(predicted: Sequence[int], output: Sequence[int], limit: int = 3) -> Iterator[list[int]]:
    """Yield the draft before each token of the output, and after the last."""
    one, answer = drafter(), Answer(predicted)
    for token in (*output, None):
        yield list(one.propose([answer], limit)[0].tokens)
        if token is not None:
            answer.tokens.append(token)


def test_an_answer_as_predicted_is_followed_from_its_beginning_to_its_end():
    assert list(drafts([1, 2, 3, 4], [1, 2, 3, 4])) == [[1, 2, 3], [2, 3, 4], [3, 4], [4], []]


def test_after_a_changed_token_the_place_is_found_by_the_next_two():
    found = list(drafts([1, 2, 3, 4, 5, 6, 7], [1, 2, 99, 4, 5], limit=2))
    assert found[3:] == [[], [], [6, 7]]


def test_removed_and_added_text_is_passed_over():
    assert list(drafts([1, 2, 3, 4, 5, 6], [1, 4, 5], limit=2))[-1] == [6]
    assert list(drafts([1, 2, 3, 4], [1, 80, 81, 82, 2, 3], limit=2))[-1] == [4]


def test_of_several_places_the_next_one_is_meant():
    predicted = [7, 8, 1, 7, 8, 2, 7, 8, 3]
    assert list(drafts(predicted, [7, 8, 1, 50, 7, 8], limit=1))[-1] == [2]
    assert list(drafts(predicted, [7, 8, 1, 7, 8, 2, 7, 8, 3, 50, 7, 8], limit=1))[-1] == [3]  # none is left: the last


def test_a_long_equal_run_is_stronger():
    one, answer = drafter(), Answer(range(20))
    strengths = []
    for token in range(LONG_MATCH + 1):
        strengths.append(one.propose([answer], 1)[0].strength)
        answer.tokens.append(token)
    assert strengths == [0] * LONG_MATCH + [1]


def test_several_new_tokens_are_followed_at_once():
    one, answer = drafter(), Answer([1, 2, 3, 4, 5])
    one.propose([answer], 3)
    answer.tokens.extend([1, 2, 3])
    assert list(one.propose([answer], 3)[0].tokens) == [4, 5]


def test_a_long_prediction_is_indexed_in_several_calls_and_followed_meanwhile():
    one, answer = drafter(), Answer(range(MAX_ADDED + 10))
    assert list(one.propose([answer], 2)[0].tokens) == [0, 1]
    answer.tokens.extend([0, 1, MAX_ADDED, MAX_ADDED + 1])  # the answer jumps to what is indexed last
    assert list(one.propose([answer], 2)[0].tokens) == [MAX_ADDED + 2, MAX_ADDED + 3]


def test_one_call_indexes_little_of_many_long_predictions():
    one = drafter()
    answers = [Answer(range(2 * MAX_ADDED), sample_id=f"a{each}") for each in range(3)]
    one.propose(answers, 2)
    assert [len(one._followers[each.sample_id]._places) for each in answers] == [MAX_ADDED - 1, *2 * [LEAST_ADDED - 1]]


def test_without_a_prediction_there_is_no_draft_and_nothing_is_kept():
    one = drafter()
    assert one.propose([Answer(())], 3) == [NO_DRAFT] and not one._followers
    one.propose([Answer([1])], 3)
    one.forget("a")
    assert not one._followers


@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=30), st.integers(1, 4))
def test_a_draft_is_a_piece_of_the_prediction(predicted, output, limit):
    pieces = [predicted[at : at + limit] for at in range(len(predicted))]
    assert all(not draft or draft in pieces for draft in drafts(predicted, output, limit))
