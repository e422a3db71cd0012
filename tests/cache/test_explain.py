"""Explanations of hits and misses."""

from __future__ import annotations

import pytest

from quire.cache.explain import Cause
from quire.cache.kv_cache import KVCache
from quire.types.request import CacheKey
from tests.cache.serving import KEY, begin, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_explain_reports_a_complete_hit():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5))
    answer = cache.explain(tokens(1, 2, 3, 4, 5), KEY)
    assert (answer.cause, answer.num_hit) == (Cause.WHOLE, 5)
    assert str(answer) == "5 of 5 tokens were cached."


def test_explain_names_the_token_where_the_prompt_diverged():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8))
    answer = cache.explain(tokens(1, 2, 3, 4, 5, 9, 7, 8), KEY)
    assert (answer.cause, answer.num_hit, answer.prompt_token, answer.cached_token) == (Cause.DIVERGED, 5, 9, 6)
    assert "position 5" in str(answer)


def test_explain_reports_when_a_block_was_evicted():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1, 2, 2, 2, 2), now=1.0)
    serve(cache, tokens(9, 9, 9, 9), now=7.5)
    answer = cache.explain(tokens(1, 1, 1, 1, 2, 2, 2, 2), KEY)
    assert (answer.cause, answer.num_hit, answer.evicted_at) == (Cause.EVICTED, 4, 7.5)
    assert "7.500" in str(answer)


def test_explain_tells_an_evicted_block_from_one_that_reuses_its_place():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1, 2, 2, 2, 2), now=1.0)
    serve(cache, tokens(3, 3, 3, 3, 4, 4, 4, 4), now=2.0)  # reuses both blocks
    assert cache.explain(tokens(3, 3, 3, 3, 2, 2, 2, 2), KEY).cause is Cause.DIVERGED


def test_explain_reports_tokens_cached_for_another_salt():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4), key=CacheKey(salt="theirs"))
    answer = cache.explain(tokens(1, 2, 3, 4), CacheKey(salt="ours"))
    assert answer.cause is Cause.OTHER_SALT and "another" in str(answer)


def test_explain_reports_tokens_never_seen():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4))
    answer = cache.explain(tokens(5, 6, 7, 8), KEY)
    assert (answer.cause, answer.num_hit) == (Cause.UNSEEN, 0) and "0 of 4" in str(answer)


def test_explain_changes_nothing():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5))
    before = cache.stats(), cache.snapshot()
    cache.explain(tokens(1, 2, 9), KEY)
    assert (cache.stats(), cache.snapshot()) == before


def test_explain_names_the_last_state_that_was_kept():
    cache = KVCache(16, 4, num_states=4)
    first, second = tokens(*range(12), 50, 51, 52, 53), tokens(*range(12), 60, 61)
    lease = begin(cache, first)
    cache.want(lease, 5)
    cache.take_saves(lease, 0, 16, 0.0)
    cache.release(lease, first, 16, 0.0)
    answer = cache.explain(second, KEY)
    assert (answer.cause, answer.num_hit, answer.num_in_tree) == (Cause.NO_CHECKPOINT, 5, 12)
    assert str(answer) == (
        "5 of 14 tokens were cached; 7 more are in the tree, but the last state that was kept is at position 5."
    )
    answer = cache.explain(tokens(0, 1, 2, 99), KEY)
    assert (answer.num_hit, answer.num_in_tree) == (0, 3) and "no state was kept there" in str(answer)
    answer = cache.explain(first, KEY)
    assert (answer.cause, answer.num_hit, answer.num_in_tree) == (Cause.WHOLE, 15, 16)


def test_explain_reports_evicted_blocks_of_a_window():
    cache = KVCache(16, 4, windows=[(6, 3)])
    serve(cache, tokens(*range(12)))
    other = begin(cache, tokens(*range(50, 58)))
    answer = cache.explain(tokens(*range(12), 1), KEY)
    assert other.windows and (answer.cause, answer.num_hit, answer.num_in_tree) == (Cause.WINDOW_EVICTED, 0, 12)
    assert "12 more are in the tree, but blocks of a window" in str(answer)
