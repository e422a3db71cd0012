"""Drafts from the prefix tree."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields

import pytest

from quire.spec.tree import LOOK_EVERY, TreeDrafter
from quire.types.request import CacheKey
from tests.cache.serving import KEY, begin, make_cache, serve, tokens

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


@pytest.mark.parametrize("name", [each.name for each in fields(CacheKey)])
@pytest.mark.parametrize("num_known", [2, 4, 6])
def test_the_tree_has_no_continuation_for_another_key(name: str, num_known: int):
    """A draft from another tenant's text would reveal it: an accepted draft is faster."""
    cache, text = make_cache(num_blocks=16), tokens(*range(1, 13))
    serve(cache, text)
    known, other = text[:num_known], CacheKey(**{name: "other"})
    own = begin(cache, known)
    assert cache.continuation(own, known, 20) == text[num_known:]
    lease = begin(cache, known, key=other)
    assert not cache.continuation(lease, known, 20)
    cache.release(lease, known, num_known, 0.0)
    assert not cache.continuation(begin(cache, known, key=other), known, 20), "of its own text nothing follows"
    serve(cache, text[:8], key=other)
    assert cache.continuation(begin(cache, known, key=other), known, 20) == text[num_known:8]
    assert cache.continuation(own, known, 20) == text[num_known:]


def test_the_tree_has_no_continuation_across_keys_that_are_joined_the_same():
    """Only the fields as a whole decide, not their texts one after another."""
    cache, text = make_cache(num_blocks=16), tokens(*range(1, 13))
    keys = [CacheKey(model="ab"), CacheKey(model="a", adapter="b"), CacheKey(adapter="ab"), CacheKey(salt="ab"), KEY]
    serve(cache, text, key=keys[0])
    for key in keys[1:]:
        assert not cache.continuation(begin(cache, text[:6], key=key), text[:6], 20)
    assert cache.continuation(begin(cache, text[:6], key=keys[0]), text[:6], 20) == text[6:]
