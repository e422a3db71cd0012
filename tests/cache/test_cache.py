"""The KV cache: sharing, eviction, clearing."""

from __future__ import annotations

import pytest

from quire.cache.kv_cache import KVCache
from quire.cache.radix import NO_BLOCK, root_of
from quire.cache.recent_paths import MAX_PATHS
from quire.types.request import CacheKey
from tests.cache.serving import KEY, begin, cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure

# ── sharing ──


def test_a_partial_block_is_dropped_when_a_longer_sibling_repeats_it_even_with_a_third_between():
    cache = make_cache()
    serve(cache, tokens(1), session="s")  # held, so it is kept when the next one repeats it
    serve(cache, tokens(1, 1), session="s")
    serve(cache, tokens(1, 2))
    assert sorted(event.tokens for event in cache.snapshot()) == [(1, 1), (1, 2)]


def test_prompts_with_a_common_prefix_are_matched_correctly_also_after_part_of_it_was_evicted():
    cache = KVCache(num_blocks=64, block_tokens=4)
    prefixes = [tokens(*(100 * first + at for at in range(40))) for first in range(MAX_PATHS + 2)]
    for _ in range(3):  # more first blocks than are remembered, and more blocks than fit
        for prompt in prefixes:
            serve(cache, prompt)
            for suffix in range(3):
                assert cached(cache, prompt + tokens(suffix, suffix, suffix, suffix)) == 40
            assert cached(cache, prompt[:21] + tokens(7)) == 21
    found = cache.match(prefixes[-1], KEY)
    assert found.num_tokens == 40 and cache.match(prefixes[-1], KEY, last=found) == found
    for prompt in prefixes[:7]:
        serve(cache, prompt)
    again = cache.match(prefixes[-1], KEY, last=found)
    assert again == cache.match(prefixes[-1], KEY) and again.num_tokens < 40


def test_a_second_request_holds_the_same_blocks_and_computes_only_its_own_tokens():
    cache = make_cache()
    first = begin(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9))
    cache.seal(first, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9), 9, 0.0)
    second = begin(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8, 10))
    assert second.blocks[:2] == first.blocks[:2] and second.blocks[2] != first.blocks[2]
    assert second.num_hit == 8 and second.copy is None
    assert cache.stats().num_held == 4
    cache.check()


def test_a_hit_is_exact_to_the_token_by_copying_the_head_of_a_block():
    cache = make_cache()
    source = serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8))
    lease = begin(cache, tokens(1, 2, 3, 4, 5, 6, 9, 9))
    assert lease.num_hit == 6
    assert lease.copy is not None and lease.copy == (source.blocks[1], lease.blocks[1], 2)


def test_the_source_of_a_copy_is_held_until_the_step_that_copies_is_over():
    cache = make_cache(num_blocks=3)
    serve(cache, tokens(1, 2, 3, 4))
    prompt = tokens(1, 2, 9, 9, 9, 9, 9, 9)
    lease = begin(cache, prompt)
    assert lease.copy is not None
    assert cache.stats().num_held == 3 and not cache.extend(lease, 12, 0.0)
    cache.seal(lease, prompt, 8, 0.0)
    assert lease.copy is None and cache.extend(lease, 12, 0.0)


def test_a_block_whose_copy_may_have_failed_is_not_found():
    cache = make_cache()
    prompt = tokens(1, 2, 3, 4, 5, 6, 7)
    first = begin(cache, prompt)
    cache.seal(first, prompt, 7, 0.0)
    second = cache.fork(first, 6, 0.0)
    assert second is not None and second.copy is not None
    cache.release(second, prompt, 6, 0.0)  # its first step failed
    cache.check()
    assert cached(cache, prompt) == 4
    cache.release(first, prompt, 7, 0.0)
    assert cached(cache, prompt) == 7


def test_the_last_partly_filled_block_is_found_by_the_next_turn():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5, 6))
    assert cached(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8)) == 6


def test_a_short_block_is_freed_when_a_longer_one_repeats_it():
    cache = make_cache()
    serve(cache, tokens(1, 2))
    serve(cache, tokens(1, 2, 3, 4))
    assert cache.stats().num_cached == 1


def test_a_prompt_shorter_than_what_is_cached_is_found_too():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4))
    serve(cache, tokens(1, 2, 3))
    assert cache.stats().num_cached == 1 and cached(cache, tokens(1, 2, 3)) == 3


def test_the_longest_head_is_found_among_many_siblings():
    cache = KVCache(600, block_tokens=4)
    for token in range(500):
        serve(cache, tokens(7, token, token, 1))
    hit = cache.match(tokens(7, 250, 250, 9), KEY)
    assert hit.num_tokens == 3 and hit.source != NO_BLOCK


def test_twins_computed_at_the_same_time_are_both_released():
    cache = make_cache()
    prompt = tokens(1, 2, 3, 4, 5)
    first, second = begin(cache, prompt), begin(cache, prompt)
    for lease in (first, second):
        cache.seal(lease, prompt, 5, 0.0)
        cache.check()
    assert second.path == first.path != second.blocks[:1]
    for lease in (first, second):
        cache.release(lease, prompt, 5, 0.0)
        cache.check()
    assert cache.stats().num_held == 0 and cache.stats().num_cached == 2


def test_a_match_returns_the_lease_that_computes_the_next_block():
    cache = make_cache()
    prompt = tokens(1, 2, 3, 4, 5, 6, 7, 8, 9)
    first = begin(cache, prompt)
    assert cache.match(tokens(1, 2, 3, 4, 9), KEY).leader is first
    cache.seal(first, prompt, 4, 0.0)
    assert cache.match(tokens(1, 2, 3, 4, 9), KEY).leader is None  # all that it needs is cached
    assert cache.match(prompt, KEY).leader is first
    assert cache.match(tokens(2, 2, 3, 4), KEY).leader is None
    cache.release(first, prompt, 4, 0.0)
    assert cache.match(prompt, KEY).leader is None


def test_a_fork_shares_whole_blocks_and_copies_the_rest():
    cache = make_cache()
    prompt = tokens(1, 2, 3, 4, 5, 6)
    lease = begin(cache, prompt)
    cache.seal(lease, prompt, 6, 0.0)
    other = cache.fork(lease, 5, 0.0)
    assert other is not None and other.num_hit == 5
    assert other.blocks[0] == lease.blocks[0] and other.copy == (lease.blocks[1], other.blocks[1], 1)
    cache.release(lease, prompt, 6, 0.0)
    cache.check()
    cache.release(other, prompt, 5, 0.0)
    cache.check()
    assert cache.stats().num_held == 0


@pytest.mark.parametrize("other", [CacheKey(model="m"), CacheKey(adapter="a"), CacheKey(salt="s")])
def test_models_adapters_and_salts_share_nothing(other: CacheKey):
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4))
    assert cached(cache, tokens(1, 2, 3, 4), other) == 0


def test_parts_of_a_key_cannot_be_shifted_into_each_other():
    assert root_of(CacheKey(model="ab")) != root_of(CacheKey(model="a", adapter="b"))


# ── eviction ──


def test_the_least_recently_used_leaf_is_evicted_first():
    cache = make_cache(num_blocks=3)
    for first in (1, 2, 3):
        serve(cache, tokens(first, first, first, first))
    lease = begin(cache, tokens(1, 1, 1, 1, 5))  # uses 1, evicts 2
    assert cached(cache, tokens(2, 2, 2, 2)) == 0 and cached(cache, tokens(3, 3, 3, 3)) == 4
    cache.release(lease, tokens(1, 1, 1, 1, 5), 5, 0.0)


def test_a_chain_is_evicted_from_its_end():
    cache = make_cache(num_blocks=3)
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
    serve(cache, tokens(9, 9, 9, 9))
    assert cached(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)) == 8


def test_held_blocks_are_never_evicted():
    cache = make_cache(num_blocks=2)
    lease = begin(cache, tokens(1, 2, 3, 4, 5))
    assert cache.stats().num_held == 2
    other = cache.lease(cache.match(tokens(9, 9), KEY), tokens(9, 9), KEY, 0.0)
    assert not cache.extend(other, 2, 0.0)
    assert other.blocks == [] and len(lease.blocks) == 2
    cache.check()


# ── clearing ──


def test_clearing_keeps_the_blocks_of_running_requests_but_hides_them_from_others():
    cache = make_cache()
    prompt = tokens(1, 2, 3, 4, 5)
    lease = begin(cache, prompt)
    cache.seal(lease, prompt, 5, 0.0)
    serve(cache, tokens(7, 7, 7, 7), session="s")
    cache.clear(0.0)
    cache.check()
    assert cache.stats().num_held == 2 and cache.stats().num_cached == 0
    assert cached(cache, prompt) == 0
    cache.release(lease, prompt, 5, 0.0)
    cache.check()
    assert cached(cache, prompt) == 0 and cache.stats().num_free == 8


def test_memory_does_not_grow_with_salts_whose_blocks_were_evicted():
    cache = make_cache(num_blocks=2)
    for turn in range(100):
        serve(cache, tokens(1, 2, 3, 4), key=CacheKey(salt=str(turn)))
    assert len(cache._tree.roots) == 2 and len(cache._tree._children) == 2
