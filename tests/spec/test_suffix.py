"""Drafts from the text itself."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.spec.drafter import NO_DRAFT
from quire.spec.suffix import (
    LONG_MATCHES,
    MAX_ADDED,
    MAX_INDEXED,
    MIN_MATCH,
    SuffixDrafter,
)

pytestmark = pytest.mark.pure


@dataclass
class Spoken:
    tokens: array[int] = field(default_factory=lambda: array("I"))
    sample_id: str = "a"


def draft(tokens, limit=4):
    (found,) = SuffixDrafter().propose([Spoken(array("I", tokens))], limit)
    return list(found.tokens), found.strength


def test_the_text_after_the_last_occurrence_is_proposed():
    assert draft([1, 2, 3, 4, 5, 6, 9, 1, 2, 3]) == ([4, 5, 6, 9], 0)


def test_the_longest_match_is_preferred_to_the_newest():
    assert draft([7, 1, 2, 3, 40, 8, 1, 2, 3, 50, 7, 1, 2, 3], limit=1) == ([40], 0)


def test_fewer_tokens_than_a_match_give_no_draft():
    assert SuffixDrafter().propose([Spoken(array("I", [1, 2] * MIN_MATCH)[:MIN_MATCH])], 4) == [NO_DRAFT]


def test_a_text_that_repeats_itself_goes_on():
    assert draft([1, 2, 1, 2, 1, 2], limit=5) == ([1, 2, 1, 2, 1], 0)


@pytest.mark.parametrize("length, strength", [(MIN_MATCH, 0), (LONG_MATCHES[0], 1), (LONG_MATCHES[1], 2)])
def test_longer_matches_are_stronger(length, strength):
    run = list(range(10, 10 + length))
    assert draft([1, *run, 99, 2, *run], limit=1) == ([99], strength)


def test_a_growing_text_gives_what_a_whole_one_gives():
    drafter, text = SuffixDrafter(), Spoken()
    for token in [1, 2, 3, 4, 1, 2, 3, 4, 2, 3, 4, 1, 2]:
        text.tokens.append(token)
        assert drafter.propose([text], 3) == SuffixDrafter().propose([text], 3)


def test_texts_are_kept_apart_and_forgotten():
    drafter = SuffixDrafter()
    drafter.propose([Spoken(array("I", [1, 2, 3, 4]))], 3)
    drafter.forget("a")
    assert drafter.propose([Spoken(array("I", [9, 1, 2, 3]))], 3) == [NO_DRAFT]


def test_only_the_end_of_a_long_prompt_is_searched():
    def drafts(num_between):
        long = Spoken(array("I", [1, 2, 3, 4, *range(100, 100 + num_between), 1, 2, 3]))
        drafter = SuffixDrafter()
        return [list(drafter.propose([long], 1)[0].tokens) for _ in range(MAX_INDEXED // MAX_ADDED)]

    assert drafts(MAX_INDEXED - 7)[-1] == [4]
    assert not any(drafts(MAX_INDEXED))


def test_a_long_prompt_is_indexed_in_several_calls():
    drafter, text = SuffixDrafter(), Spoken(array("I", [*range(100, 100 + MAX_ADDED), *range(100, 110)]))
    assert drafter.propose([text], 2) == [NO_DRAFT]
    assert list(drafter.propose([text], 2)[0].tokens) == [110, 111]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 8))
def test_a_draft_follows_an_equal_run_of_tokens(tokens, limit):
    found, _ = draft(tokens, limit)
    if not found:
        runs = [tokens[at : at + MIN_MATCH] for at in range(len(tokens) - MIN_MATCH)]
        assert tokens[-MIN_MATCH:] not in runs
        return
    assert len(found) == limit
    followers = [
        tokens[at : at + limit]
        for at in range(MIN_MATCH, len(tokens))
        if tokens[at - MIN_MATCH : at] == tokens[-MIN_MATCH:]
    ]
    assert any(found[: len(each)] == each for each in followers)


def test_a_long_prompt_delays_no_draft_of_another_text():
    drafter = SuffixDrafter()
    long = Spoken(array("I", range(100, 100 + 3 * MAX_ADDED)), "long")
    short = Spoken(array("I", [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]), "short")
    assert list(drafter.propose([long, short], 2)[1].tokens) == [4, 5]


def test_several_long_prompts_share_what_one_call_indexes():
    drafter = SuffixDrafter()
    run = [1, 2, 3, 4]
    texts = [Spoken(array("I", [*run, *range(100, 100 + MAX_ADDED - 8), *run[:3]]), str(n)) for n in range(4)]
    calls = [NO_DRAFT in drafter.propose(texts, 1) for _ in range(10)]
    assert 2 <= calls.count(True) <= 4 and not calls[-1]
