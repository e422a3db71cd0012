"""Sessions hold the last context of a conversation."""

from __future__ import annotations

import pytest

from quire.cache.kv_cache import KVCache
from tests.cache.serving import cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_a_session_holds_its_last_context_against_other_traffic():
    cache = make_cache(num_blocks=3)
    serve(cache, tokens(1, 1, 1, 1, 2), session="s")
    assert cache.stats().num_held == 2
    serve(cache, tokens(8, 8, 8, 8))
    serve(cache, tokens(9, 9, 9, 9))
    assert cached(cache, tokens(1, 1, 1, 1, 2)) == 5


def test_the_next_turn_replaces_what_a_session_holds():
    cache = make_cache()
    serve(cache, tokens(1, 1, 1, 1, 2), session="s")
    serve(cache, tokens(1, 1, 1, 1, 2, 3, 4, 5, 6), session="s")
    assert cache.stats().num_sessions == 1 and cache.stats().num_held == 3


def test_a_session_is_closed_when_nothing_else_can_be_evicted():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1), session="s")
    serve(cache, tokens(8, 8, 8, 8, 9, 9, 9, 9))
    assert cache.stats().num_sessions == 0


def test_an_idle_session_expires_and_a_closed_one_ends_at_once():
    cache = KVCache(8, 4, session_ttl=60.0)
    serve(cache, tokens(1, 1, 1, 1), now=0.0, session="s")
    serve(cache, tokens(2, 2, 2, 2), now=30.0, session="t")
    cache.sessions.expire(60.0)
    assert cache.stats().num_held == 1
    assert cache.sessions.close("t", 61.0) == 1 and cache.sessions.close("t", 61.0) == 0
    assert cache.stats().num_held == 0 and cache.stats().num_cached == 2
    cache.check()
