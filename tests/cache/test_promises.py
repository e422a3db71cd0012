"""Promised blocks: found by other requests before they are computed."""

from __future__ import annotations

import pytest

from quire.cache.radix import NO_BLOCK
from quire.types.events import BlockRemoved
from tests.cache.serving import KEY, begin, cached, make_cache, serve, tokens

pytestmark = pytest.mark.pure


def test_promised_blocks_are_found_at_once_but_not_copied_before_they_are_computed():
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
    cache.seal(lease, prompt, 10, 0.0)  # changes nothing
    cache.check()
    cache.release(lease, prompt, 10, 0.0)
    cache.release(second, tokens(*range(8), 50, 51), 10, 0.0)
    cache.check()


def test_a_withdrawn_promise_removes_its_blocks_and_their_descendants():
    cache, prompt, longer = make_cache(), tokens(*range(10)), tokens(*range(8), *range(50, 56))
    serve(cache, prompt[:4])
    lease = begin(cache, prompt)
    promised = cache.promise(lease, prompt, 10, 0.0)
    dependent = begin(cache, longer)
    cache.promise(dependent, longer, 14, 0.0)
    assert (lease.num_hit, dependent.num_hit, cached(cache, longer)) == (4, 8, 12)
    assert cache.withdraw(promised, 0.0) == [lease, dependent]
    assert cached(cache, longer) == 4, "blocks computed before stay"
    cache.release(dependent, longer, 8, 0.0)  # it treated eight tokens as computed
    cache.release(lease, prompt, 4, 0.0)
    cache.check()
    assert cached(cache, longer) == 4 and cache.stats().num_free == 7
    events = cache.history.since(0)
    assert events is not None and sum(isinstance(event, BlockRemoved) for event in events) == 2


def test_withdrawing_a_promise_spares_equal_blocks_that_were_stored_again_after_its_eviction():
    cache, prompt = make_cache(num_blocks=3), tokens(*range(8))
    lease = begin(cache, prompt)
    promised = cache.promise(lease, prompt, 8, 0.0)
    cache.release(lease, prompt, 0, 0.0)  # cancelled before the step was over
    serve(cache, tokens(*range(90, 102)))  # needs all blocks
    serve(cache, prompt)
    assert cache.withdraw(promised, 0.0) == [] and cached(cache, prompt) == 8
    cache.check()
