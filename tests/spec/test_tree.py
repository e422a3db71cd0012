"""Drafts from the prefix tree."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import pytest

from quire.spec.tree import LOOK_EVERY, TreeDrafter

pytestmark = pytest.mark.pure


@dataclass
class Known:
    tokens: array[int] = field(default_factory=lambda: array("I", [1, 2, 3]))
    sample_id: str = "a"


def test_a_text_that_was_not_found_is_looked_up_again_after_a_while():
    asked, found = [], [7, 8]

    def find(text: Known, limit: int) -> list[int]:
        asked.append(len(text.tokens))
        return found[:limit]

    drafter, text = TreeDrafter(find), Known()
    assert list(drafter.propose([text], 1)[0].tokens) == [7] and drafter.propose([text], 2)[0].tokens == [7, 8]
    found.clear()
    for _ in range(2 * LOOK_EVERY):
        assert not drafter.propose([text], 2)[0].tokens
        text.tokens.append(4)
    assert asked == [3, 3, 3, 3 + LOOK_EVERY]
    drafter.forget("a")
    assert not drafter._look_at
