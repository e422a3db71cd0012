"""Changing the number of blocks in use while requests hold some."""

from __future__ import annotations

import pytest

from tests.cache.serving import begin, cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_shrinking_retires_free_blocks_first_and_then_evicts():
    cache = make_cache(num_blocks=4)
    serve(cache, tokens(1, 1, 1, 1))
    serve(cache, tokens(2, 2, 2, 2))
    cache.resizing.start(2, 0.0)
    assert len(cache.resizing.retired_blocks()) == 2 and cache.stats().num_cached == 2
    cache.resizing.start(1, 0.0)
    assert [cached(cache, tokens(n, n, n, n)) for n in (1, 2)] == [0, 4]
    assert cache.num_blocks == 1 and len(cache.resizing.retired_blocks()) == 3
    cache.check()


def test_held_blocks_are_retired_after_they_are_released():
    cache = make_cache(num_blocks=4)
    prompt = tokens(*range(12))
    lease = begin(cache, prompt)
    cache.resizing.start(1, 0.0)
    assert cache.stats().num_held == 3 and len(cache.resizing.retired_blocks()) == 1
    assert not cache.resizing.advance(0.0), "nothing was released"
    cache.release(lease, prompt, 12, 0.0)
    assert cache.resizing.advance(0.0) and not cache.resizing.advance(0.0)
    assert len(cache.resizing.retired_blocks()) == 3 and cached(cache, prompt) == 4
    cache.check()


def test_shrinking_closes_idle_sessions():
    cache = make_cache(num_blocks=4)
    serve(cache, tokens(1, 1, 1, 1), session="s")
    serve(cache, tokens(2, 2, 2, 2), session="t")
    cache.resizing.start(1, 0.0)
    assert cache.stats().num_sessions == 1 and cached(cache, tokens(2, 2, 2, 2)) == 4
    cache.check()


def test_growing_returns_the_lowest_retired_blocks_and_stops_at_the_size_of_the_pool():
    cache = make_cache(num_blocks=4)
    cache.resizing.start(1, 0.0)
    assert cache.resizing.retired_blocks() == [1, 2, 3]
    cache.resizing.start(3, 0.0)
    assert cache.resizing.retired_blocks() == [3] and cache.stats().num_free == 3
    cache.resizing.start(100, 0.0)
    assert cache.num_blocks == 4 and cache.resizing.retired_blocks() == []
    cache.check()
