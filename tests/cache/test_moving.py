"""Blocks that come from another engine are ordinary nodes: found by requests, evicted by the same ranks."""

from __future__ import annotations

from array import array

import pytest

from quire.cache.kv_cache import KVCache
from quire.cache.lease import NO_SLOT
from quire.cache.moving import BlockContent
from quire.cache.radix import NO_BLOCK
from quire.types.events import BlockStored
from quire.types.request import CacheKey, Pin
from tests.cache.serving import KEY, tokens

pytestmark = pytest.mark.pure

SIZE = 4
PLAIN = BlockContent()


def serve(cache: KVCache, prompt: array[int], saves: bool = False, key: CacheKey = KEY) -> None:
    """Compute a whole prompt in steps of a block."""
    hit = cache.match(prompt, key, len(prompt) - 1)
    assert cache.can_start(hit, len(prompt), 0.0)
    lease = cache.lease(hit, prompt, key, 0.0)
    for start in range(lease.num_hit, len(prompt), SIZE):
        end = min(start + SIZE, len(prompt))
        assert cache.extend(lease, end, 0.0, start)
        if saves:
            cache.take_saves(lease, start, end, 0.0)
        cache.seal(lease, prompt, end, 0.0)
    cache.release(lease, prompt, len(prompt), 0.0)
    cache.check()


def receive(cache: KVCache, prompt: array[int], contents: list[BlockContent], first: int = 0) -> bool:
    arrivals = cache.moving.reserve(prompt, KEY, first, contents, 1.0)
    if arrivals is None:
        return False
    cache.moving.store(arrivals, 1.0)
    cache.check()
    return True


def test_received_blocks_are_found_and_recorded_like_computed_ones():
    sender, receiver, prompt = KVCache(16, SIZE), KVCache(16, SIZE), tokens(*range(13))
    serve(sender, prompt)
    assert len(sender.moving.departing(prompt[:12], KEY, 0, 1.0)) == 3
    assert receive(receiver, prompt, [PLAIN] * 2) and receive(receiver, prompt, [PLAIN], first=2)
    assert receiver.match(prompt, KEY, 12).num_tokens == 12
    assert receiver.stats().num_held == 0 and receiver.stats().num_cached == 3
    receiver.snapshot()
    stored = [each for each in receiver.history.since(0) or receiver.snapshot() if isinstance(each, BlockStored)]
    sent = [each for each in sender.snapshot() if isinstance(each, BlockStored)]
    assert [each.digest for each in stored] == [each.digest for each in sent if len(each.tokens) == SIZE]


def test_received_blocks_belong_to_their_key():
    cache, prompt = KVCache(16, SIZE), tokens(*range(9))
    assert receive(cache, prompt, [PLAIN] * 2)
    assert cache.match(prompt, CacheKey(salt="another"), 8).num_tokens == 0


def test_a_block_that_is_computed_meanwhile_is_kept_once():
    cache, prompt = KVCache(16, SIZE), tokens(*range(13))
    serve(cache, prompt)
    assert receive(cache, prompt, [PLAIN] * 3)
    assert cache.stats().num_cached == 4  # with the head of the last one


def test_received_blocks_are_evicted_by_the_same_ranks():
    cache, old, new = KVCache(4, SIZE), tokens(*range(9)), tokens(*range(20, 29))
    assert receive(cache, old, [PLAIN] * 2)
    cache.pins.add(old[:4], KEY, Pin(0, 4, rank=9), 1.0)
    assert receive(cache, new, [PLAIN] * 2)
    assert receive(cache, tokens(*range(40, 49)), [PLAIN] * 2)
    assert cache.match(old, KEY, 8).num_tokens == 4  # the pinned block stays
    assert cache.stats().num_free == 0


def test_there_is_no_room_beside_held_blocks_and_then_nothing_changes():
    cache, prompt = KVCache(4, SIZE), tokens(*range(12))
    lease = cache.lease(cache.match(prompt, KEY, 11), prompt, KEY, 0.0)
    assert cache.extend(lease, 12, 0.0)
    assert not receive(cache, tokens(*range(30, 39)), [PLAIN] * 2)
    cache.check()
    assert cache.stats().num_free == 1
    cache.release(lease, prompt, 12, 0.0)


def test_blocks_whose_prefix_was_evicted_are_refused():
    cache, prompt = KVCache(8, SIZE), tokens(*range(13))
    assert receive(cache, prompt, [PLAIN])
    cache.clear(1.0)
    assert not receive(cache, prompt, [PLAIN], first=1)


def test_memory_that_was_not_written_is_free_again():
    cache, prompt = KVCache(8, SIZE, windows=[(6, 8)], num_states=4), tokens(*range(9))
    arrivals = cache.moving.reserve(prompt, KEY, 0, [BlockContent((True,), True)] * 2, 1.0)
    assert arrivals is not None
    cache.moving.drop(arrivals, 1.0)
    cache.check()
    assert cache.stats().num_free == 8 and cache.match(prompt, KEY, 8).num_tokens == 0


def test_promised_blocks_do_not_leave_before_they_are_computed():
    cache, prompt = KVCache(16, SIZE), tokens(*range(9))
    lease = cache.lease(cache.match(prompt, KEY, 8), prompt, KEY, 0.0)
    assert cache.extend(lease, 9, 0.0)
    promise = cache.promise(lease, prompt, 8, 0.0)
    assert cache.moving.num_blocks(prompt, KEY) == 0
    cache.fulfil([promise])
    assert cache.moving.num_blocks(prompt, KEY) == 2
    cache.release(lease, prompt, 8, 0.0)


def test_a_window_comes_with_the_blocks_that_a_request_behind_them_reads():
    sender, receiver = (KVCache(16, SIZE, windows=[(6, 16)]) for _ in range(2))
    prompt = tokens(*range(21))
    serve(sender, prompt)
    places = sender.moving.departing(prompt[:20], KEY, 0, 1.0)
    assert [each.windows[0] != NO_BLOCK for each in places] == [False, False, False, True, True]
    contents = [BlockContent(tuple(block != NO_BLOCK for block in each.windows)) for each in places]
    assert receive(receiver, prompt, contents)
    assert receiver.match(prompt, KEY, 20).num_tokens == 20
    assert receiver.moving.num_resumable(prompt, KEY) == 5
    assert receiver.moving.num_resumable(prompt[:13], KEY) == 0  # its window did not come


def test_a_state_comes_with_the_last_block():
    sender, receiver = (KVCache(16, SIZE, num_states=6) for _ in range(2))
    prompt = tokens(*range(13))
    serve(sender, prompt, saves=True)
    places = sender.moving.departing(prompt[:12], KEY, 0, 1.0)
    assert [each.state != NO_SLOT for each in places] == [False, False, True]
    assert receive(receiver, prompt, [BlockContent((), each.state != NO_SLOT) for each in places])
    assert receiver.match(prompt, KEY, 12).num_tokens == 12
    assert receiver.moving.num_resumable(prompt[:9], KEY) == 0


def test_a_last_block_waits_for_a_state_that_is_being_computed():
    cache, prompt = KVCache(16, SIZE, num_states=6), tokens(*range(13))
    serve(cache, tokens(*range(17)), saves=True)  # its state is behind the one that is wanted
    assert len(cache.moving.departing(prompt[:12], KEY, 0, 1.0, is_computing=True)) == 2
    assert len(cache.moving.departing(prompt[:12], KEY, 0, 1.0)) == 3


def test_a_prefix_that_others_fetch_counts_as_used():
    cache, hot, cold = KVCache(4, SIZE), tokens(*range(9)), tokens(*range(20, 29))
    assert receive(cache, hot, [PLAIN] * 2) and receive(cache, cold, [PLAIN] * 2)
    assert len(cache.moving.departing(hot[:8], KEY, 0, 2.0)) == 2
    assert receive(cache, tokens(*range(40, 45)), [PLAIN])
    assert cache.match(hot, KEY, 8).num_tokens == 8
