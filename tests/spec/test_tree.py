"""Drafts from the prefix tree."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields

import pytest

from quire.cache.kv_cache import KVCache
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


def continuation(cache: KVCache, text: array[int], key: CacheKey = KEY) -> list[int]:
    """What the tree has after a text, for a request that then ends without computing anything."""
    lease = begin(cache, text, key=key)
    found = list(cache.continuation(lease, text, 20))
    cache.release(lease, text, lease.num_hit, 0.0)
    return found


@pytest.mark.parametrize("name", [each.name for each in fields(CacheKey)])
@pytest.mark.parametrize("num_known", [2, 4, 6])
def test_the_tree_has_no_continuation_for_another_key(name: str, num_known: int):
    """A draft from another tenant's text would reveal it: an accepted draft is faster."""
    cache, text = make_cache(num_blocks=16), tokens(*range(1, 13))
    known, other = text[:num_known], CacheKey(**{name: "other"})
    serve(cache, text)
    assert continuation(cache, known) == list(text[num_known:])
    assert continuation(cache, known, other) == []
    serve(cache, text[:8], key=other)
    assert continuation(cache, known, other) == list(text[num_known:8]), "its own text"
    assert continuation(cache, known) == list(text[num_known:])


def test_keys_whose_fields_have_the_same_text_together_are_different():
    cache, text = make_cache(num_blocks=16), tokens(*range(1, 13))
    serve(cache, text, key=CacheKey(model="ab"))
    for key in (CacheKey(model="a", adapter="b"), CacheKey(adapter="ab"), CacheKey(salt="ab"), KEY):
        assert continuation(cache, text[:6], key) == []
    assert continuation(cache, text[:6], CacheKey(model="ab")) == list(text[6:])


def test_of_several_continuations_the_newest_is_drafted():
    cache = make_cache(num_blocks=16)
    for now, end in enumerate(([7, 8], [9, 9], [8, 7])):
        serve(cache, tokens(1, 2, 3, 4, 5, 6, *end), now=float(now))
    assert continuation(cache, tokens(1, 2, 3, 4, 5, 6)) == [8, 7]


def test_a_shorter_block_that_is_held_hides_no_continuation():
    """The end of an earlier turn, which its session holds."""
    cache, text = make_cache(num_blocks=16), tokens(*range(1, 13))
    serve(cache, text[:6], session="turns")
    serve(cache, text)
    assert continuation(cache, text[:6]) == list(text[6:])
    assert continuation(cache, text[:5]) == list(text[5:])
