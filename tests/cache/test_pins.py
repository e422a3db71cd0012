"""Pins: order of eviction, time to live, and ranges of tokens."""

from __future__ import annotations

import pytest

from quire.types.errors import InvalidRequest
from quire.types.request import Pin
from tests.cache.serving import KEY, cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_a_pinned_block_outlasts_more_recent_ones_and_a_higher_rank_outlasts_a_lower():
    cache = make_cache(num_blocks=3)
    serve(cache, tokens(1, 1, 1, 1), pins=(Pin(0, 4, rank=10),))
    serve(cache, tokens(2, 2, 2, 2), pins=(Pin(0, 4, rank=20),))
    serve(cache, tokens(3, 3, 3, 3))
    serve(cache, tokens(4, 4, 4, 4))
    assert [cached(cache, tokens(n, n, n, n)) for n in (1, 2, 3, 4)] == [4, 4, 0, 4]
    serve(cache, tokens(5, 5, 5, 5, 6, 6, 6, 6))
    assert [cached(cache, tokens(n, n, n, n)) for n in (1, 2, 4)] == [0, 4, 0]


def test_a_pin_never_weakens_a_stronger_one():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1), pins=(Pin(0, 4, rank=50),))
    serve(cache, tokens(1, 1, 1, 1), pins=(Pin(0, 4, rank=1),))
    serve(cache, tokens(2, 2, 2, 2), pins=(Pin(0, 4, rank=10),))
    serve(cache, tokens(3, 3, 3, 3))
    assert [cached(cache, tokens(n, n, n, n)) for n in (1, 2)] == [4, 0]


def test_a_pin_covers_only_its_token_range():
    cache = make_cache(num_blocks=3)
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8), pins=(Pin(0, 4),))
    serve(cache, tokens(9, 9, 9, 9))
    serve(cache, tokens(8, 8, 8, 8))
    assert cached(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8)) == 4


def test_a_block_with_an_expired_pin_is_evicted_first_even_if_used_last():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1), now=0.0)
    serve(cache, tokens(2, 2, 2, 2), now=0.0, pins=(Pin(0, 4, rank=90, ttl=10.0),))
    serve(cache, tokens(3, 3, 3, 3), now=11.0)
    assert [cached(cache, tokens(n, n, n, n)) for n in (1, 2)] == [4, 0]


def test_a_hit_renews_the_time_to_live_of_a_pin():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1), now=0.0, pins=(Pin(0, 4, ttl=10.0),))
    serve(cache, tokens(1, 1, 1, 1, 2), now=9.0)  # the hit
    serve(cache, tokens(3, 3, 3, 3), now=15.0)
    assert cached(cache, tokens(1, 1, 1, 1)) == 4
    serve(cache, tokens(4, 4, 4, 4), now=20.0)
    assert cached(cache, tokens(1, 1, 1, 1)) == 0


def test_cached_blocks_can_be_pinned_and_unpinned_later():
    cache = make_cache(num_blocks=2)
    serve(cache, tokens(1, 1, 1, 1))
    assert cache.pins.add(tokens(1, 1, 1, 1, 7, 7), KEY, Pin(0, 6), 0.0) == 4
    serve(cache, tokens(2, 2, 2, 2))
    serve(cache, tokens(3, 3, 3, 3))
    assert cached(cache, tokens(1, 1, 1, 1)) == 4
    assert cache.pins.remove(tokens(1, 1, 1, 1), KEY, 0.0) == 1
    serve(cache, tokens(4, 4, 4, 4))
    assert cached(cache, tokens(1, 1, 1, 1)) == 0


@pytest.mark.parametrize(
    "invalid", [(0, 0, 50, None), (-1, 4, 50, None), (0, 4, 0, None), (0, 4, 101, None), (0, 4, 5, 0.0)]
)
def test_an_invalid_pin_is_refused(invalid: tuple[int, int, int, float | None]):
    with pytest.raises(InvalidRequest):
        Pin(*invalid)
