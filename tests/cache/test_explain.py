"""Explanations of hits and misses."""

from __future__ import annotations

import pytest

from quire.cache.explain import Cause
from quire.types.request import CacheKey
from tests.cache.serving import KEY, make_cache, serve, tokens

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
