"""Blocks that can be found before they are computed."""

from __future__ import annotations

import pytest

from quire.cache.radix import NO_BLOCK
from quire.types.events import BlockRemoved
from tests.cache.serving import KEY, begin, cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_what_is_promised_is_found_at_once_but_not_copied_before_it_is_computed():
    cache, prompt = make_cache(), tokens(*range(10))
    lease = begin(cache, prompt)
    promised = cache.promise(lease, prompt, 10, 0.0)
    assert [block for block, _ in promised] == lease.blocks[:2]
    other = tokens(0, 1, 2, 3, 4, 5, 99)
    hit = cache.match(other, KEY)
    assert (hit.num_tokens, hit.source) == (4, NO_BLOCK)
    second = begin(cache, tokens(*range(8), 50, 51))
    assert second.num_hit == 8 and second.blocks[:2] == lease.blocks[:2]
    cache.fulfil([promised])
    assert cached(cache, other) == 6 and cache.match(other, KEY).source == lease.blocks[1]
    cache.seal(lease, prompt, 10, 0.0)  # nothing is left to be done
    cache.check()
    cache.release(lease, prompt, 10, 0.0)
    cache.release(second, tokens(*range(8), 50, 51), 10, 0.0)
    cache.check()


def test_what_was_promised_in_vain_is_gone_with_all_that_was_built_on_it():
    cache, prompt, longer = make_cache(), tokens(*range(10)), tokens(*range(8), *range(50, 56))
    serve(cache, prompt[:4])
    lease = begin(cache, prompt)
    promised = cache.promise(lease, prompt, 10, 0.0)
    relying = begin(cache, longer)
    cache.promise(relying, longer, 14, 0.0)
    assert (lease.num_hit, relying.num_hit, cached(cache, longer)) == (4, 8, 12)
    assert cache.withdraw(promised, 0.0) == [lease, relying]
    assert cached(cache, longer) == 4, "what was there before stays"
    cache.release(relying, longer, 8, 0.0)  # it had taken eight tokens for computed
    cache.release(lease, prompt, 4, 0.0)
    cache.check()
    assert cached(cache, longer) == 4 and cache.stats().num_free == 7
    told = cache.history.since(0)
    assert told is not None and sum(isinstance(event, BlockRemoved) for event in told) == 2


def test_a_promise_that_was_evicted_and_made_again_by_others_is_not_withdrawn_from_them():
    cache, prompt = make_cache(num_blocks=3), tokens(*range(8))
    lease = begin(cache, prompt)
    promised = cache.promise(lease, prompt, 8, 0.0)
    cache.release(lease, prompt, 0, 0.0)  # cancelled before the step was over
    serve(cache, tokens(*range(90, 102)))  # needs all blocks
    serve(cache, prompt)
    assert cache.withdraw(promised, 0.0) == [] and cached(cache, prompt) == 8
    cache.check()
