"""Window groups: a request holds the blocks of its window, and those behind it stay cached until they are evicted."""

from __future__ import annotations

from array import array

import pytest

from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import KVCache, Lease
from quire.cache.radix import NO_BLOCK
from quire.types.events import BlockRemoved, BlockStored
from quire.types.request import Pin
from tests.cache.serving import KEY, begin, tokens

pytestmark = pytest.mark.pure

WINDOW = 6  # tokens; a block has 4


def make_cache(num_window_blocks: int = 8) -> KVCache:
    return KVCache(32, 4, windows=[(WINDOW, num_window_blocks)])


def serve(
    cache: KVCache, prompt: array[int], session: str | None = None, pins: tuple[Pin, ...] = (), now: float = 0.0
) -> int:
    """Run a whole request in steps of four tokens; return where it resumed."""
    hit = cache.match(prompt, KEY, len(prompt) - 1)
    assert cache.can_start(hit, min(hit.num_tokens + 4, len(prompt)), now)
    lease = cache.lease(hit, prompt, KEY, now, pins)
    for start in range(lease.num_hit, len(prompt), 4):
        end = min(start + 4, len(prompt))
        assert cache.extend(lease, end, now, start)
        cache.seal(lease, prompt, end, now)
        cache.check()
    cache.release(lease, prompt, len(prompt), now, session)
    cache.check()
    return lease.num_hit


def held(lease: Lease) -> list[int]:
    return [place for place, block in enumerate(lease.windows[0].blocks) if block != NO_BLOCK]


def test_a_lease_holds_the_blocks_of_its_window_and_no_more():
    cache, prompt = make_cache(), tokens(*range(20))
    lease = begin(cache, prompt[:4])
    for end in range(4, 21):
        assert cache.extend(lease, end, 0.0, end - 1)
        first = max(0, end - 1 + 1 - WINDOW)  # the first token that the query at `end` - 1 reads
        assert held(lease) == list(range(first // 4, (end - 1) // 4 + 1))
        cache.seal(lease, prompt, end, 0.0)
    assert len(lease.blocks) == 5
    assert cache.stats().columns.num_held_window_blocks == 2 and cache.stats().columns.num_cached_window_blocks == 3
    cache.release(lease, prompt, 20, 0.0)
    cache.check()


def test_a_request_resumes_where_the_blocks_of_its_window_are_and_needs_no_older_ones():
    cache = make_cache(num_window_blocks=4)
    assert serve(cache, tokens(*range(24))) == 0  # evicts its own first blocks
    hit = cache.match(tokens(*range(24), 99), KEY, 24)
    assert (hit.num_tokens, hit.depth, len(hit.blocks)) == (24, 24, 6)
    assert cache.match(tokens(*range(9), 99), KEY).num_tokens == 0, "the blocks before position 9 were evicted"
    assert cache.match(tokens(*range(9), 99), KEY).depth == 9


def test_a_head_is_copied_in_every_group():
    cache = make_cache()
    serve(cache, tokens(*range(12)))
    lease = begin(cache, tokens(*range(10), 99))
    copy, window = lease.copy, lease.windows[0]
    assert copy is not None and window.copy is not None and lease.num_hit == 10
    assert copy.num_tokens == window.copy.num_tokens == 2 and window.copy.target == window.blocks[2]
    assert (window.first, window.num_sent) == (1, 1) and held(lease) == [1, 2]
    cache.check()


def test_a_head_is_copied_from_another_block_that_begins_with_it_if_its_own_was_evicted():
    cache = make_cache()
    serve(cache, tokens(*range(10), 50, 51))
    serve(cache, tokens(*range(10), 60, 61))
    group = cache._columns.windows[0]
    node = cache.match(tokens(*range(10), 50, 51), KEY).blocks[2]
    group.pool.drop(group.block_of(node), 0.0)
    assert cache.match(tokens(*range(10), 50, 51, 1), KEY).num_tokens == 10
    cache.check()


def test_a_head_is_held_before_its_node_is_evicted_for_the_copy():
    cache = KVCache(4, 4, windows=[(WINDOW, 8)])
    serve(cache, tokens(*range(10), 50, 51))
    serve(cache, tokens(*range(10), 60, 61))
    column = cache._columns.windows[0]
    column.pool.drop(column.block_of(cache.match(tokens(*range(10), 50, 51), KEY).path[2]), 0.0)
    source = column.block_of(cache.match(tokens(*range(10), 60, 61), KEY).path[2])
    lease = begin(cache, tokens(*range(10), 50, 51))
    assert lease.num_hit == 10 and lease.windows[0].copy is not None and lease.windows[0].copy.source == source
    assert cache.match(tokens(*range(10), 60, 61), KEY).depth == 10, "the other text's block was evicted"
    cache.check()


def test_blocks_that_fell_behind_a_window_are_evicted_first():
    cache = make_cache(num_window_blocks=6)
    serve(cache, tokens(*range(12)))
    serve(cache, tokens(*range(50, 62)))
    serve(cache, tokens(*range(70, 74)))
    assert cache.match(tokens(*range(12), 1), KEY).num_tokens == 12, "its first block was evicted, not its last two"
    assert cache.match(tokens(*range(50, 62), 1), KEY).num_tokens == 12
    assert cache.match(tokens(*range(4), 1), KEY).num_tokens == 0


def test_a_long_text_evicts_its_own_blocks_before_the_windows_of_others():
    cache = make_cache(num_window_blocks=10)
    for start in (0, 100):
        serve(cache, tokens(*range(start, start + 12)))
    serve(cache, tokens(*range(200, 260)))  # 15 blocks
    for start, end in ((0, 12), (100, 112), (200, 260)):
        assert cache.match(tokens(*range(start, end), 1), KEY).num_tokens == end - start


def test_the_window_where_two_prompts_part_is_kept():
    cache = make_cache(num_window_blocks=16)
    resumed = []
    for suffix in range(1, 5):
        resumed.append(serve(cache, tokens(*range(24), *range(100 * suffix, 100 * suffix + 17))))
        serve(cache, tokens(*range(1000 * suffix, 1000 * suffix + 80)))  # passes more blocks than there are
    assert resumed == [0, 0, 24, 24]


def test_windows_are_kept_at_regular_distances():
    cache = KVCache(64, 4, windows=[(WINDOW, 16)], spacing=CheckpointSpacing(every=32))
    serve(cache, tokens(*range(100)))
    serve(cache, tokens(*range(200, 240)))
    hits = [cache.match(tokens(*range(end), 999), KEY).num_tokens for end in (22, 32, 50, 64, 90, 96, 100)]
    assert hits == [0, 32, 32, 64, 64, 96, 100]


def test_a_cold_block_that_is_used_again_is_evicted_like_others():
    cache = make_cache(num_window_blocks=14)
    serve(cache, tokens(*range(40)))
    assert serve(cache, tokens(*range(20), 100)) == 20  # its window was passed, and not yet evicted
    serve(cache, tokens(*range(200, 260)))
    assert cache.match(tokens(*range(20), 999), KEY).num_tokens == 20


def test_a_recomputed_block_is_stored_again_and_the_tree_keeps_its_node():
    cache = make_cache(num_window_blocks=5)
    serve(cache, tokens(*range(12)))
    for start in (50, 80):
        serve(cache, tokens(*range(start, start + 20)))
    assert cache.match(tokens(*range(12), 1), KEY)[:2] == ([], 0)
    assert serve(cache, tokens(*range(12), 1)) == 0
    assert cache.match(tokens(*range(12), 1), KEY).num_tokens == 13
    assert cache.stats().num_cached == 3 + 2 * 5 + 1


def test_an_earlier_hit_is_not_used_after_a_window_block_was_evicted():
    cache, prompt = make_cache(), tokens(*range(12), 1)
    serve(cache, prompt[:12])
    before = cache.match(prompt, KEY, 12)
    assert cache.match(prompt, KEY, 12, before) == before
    group = cache._columns.windows[0]
    group.pool.drop(group.block_of(before.blocks[2]), 0.0)
    assert cache.match(prompt, KEY, 12, before).num_tokens == 8


def test_a_request_waits_for_one_that_computes_window_blocks_again():
    cache, prompt = make_cache(num_window_blocks=5), tokens(*range(12))
    for text in (prompt, tokens(*range(50, 70)), tokens(*range(80, 100))):
        serve(cache, text)
    leader = begin(cache, prompt)
    assert leader.num_hit == 0 and cache.match(prompt, KEY, 11).leader is leader


def test_extending_is_all_or_nothing():
    cache = make_cache(num_window_blocks=3)
    lease = begin(cache, tokens(*range(8)))
    assert not cache.extend(lease, 20, 0.0) and len(lease.blocks) == len(lease.windows[0].blocks) == 2
    cache.seal(lease, tokens(*range(8)), 8, 0.0)
    assert cache.extend(lease, 12, 0.0, 8)
    cache.check()


def test_a_lease_without_room_for_its_hit_begins_at_zero():
    cache = make_cache(num_window_blocks=2)
    serve(cache, tokens(*range(7)))
    hit = cache.match(tokens(*range(6), 99), KEY, 6)
    assert hit.num_tokens == 6 and not cache.can_start(hit, 7, 0.0)
    assert cache.lease(hit, tokens(*range(6), 99), KEY, 0.0).num_hit == 4
    cache.check()


def test_a_fork_shares_the_blocks_of_the_window():
    cache, prompt = make_cache(), tokens(*range(11))
    lease = begin(cache, prompt)
    cache.seal(lease, prompt, 11, 0.0)
    assert cache.can_fork(lease, 10)
    fork = cache.fork(lease, 10, 0.0)
    assert fork is not None and held(fork) == [1, 2] and fork.windows[0].blocks[1] == lease.windows[0].blocks[1]
    assert fork.windows[0].copy is not None and fork.windows[0].copy.source == lease.windows[0].blocks[2]
    cache.check()
    cache.release(lease, prompt, 11, 0.0)
    cache.release(fork, prompt[:10], 10, 0.0)
    cache.check()


def test_a_fork_is_not_possible_once_the_window_has_passed_and_its_blocks_are_evicted():
    cache, prompt = make_cache(num_window_blocks=4), tokens(*range(24))
    lease = begin(cache, prompt[:8])
    for end in range(8, 25, 4):
        assert cache.extend(lease, end, 0.0, end - 4)
        cache.seal(lease, prompt, end, 0.0)
    assert not cache.can_fork(lease, 8) and cache.can_fork(lease, 24)


def test_a_session_holds_the_blocks_of_the_window_at_its_end():
    cache = make_cache(num_window_blocks=6)
    serve(cache, tokens(*range(14)), session="s")
    assert cache.stats().columns.num_held_window_blocks == 2
    serve(cache, tokens(*range(50, 66)))
    serve(cache, tokens(*range(70, 86)))
    assert cache.match(tokens(*range(14), 1), KEY).num_tokens == 14
    cache.sessions.close("s", 0.0)
    assert cache.stats().columns.num_held_window_blocks == 0
    cache.check()


def test_a_session_is_closed_when_a_window_group_has_no_other_blocks():
    cache = make_cache(num_window_blocks=3)
    serve(cache, tokens(*range(8)), session="s")
    serve(cache, tokens(*range(50, 58)))
    assert cache.stats().num_sessions == 0
    cache.check()


def test_a_pin_keeps_the_window_blocks_at_its_end():
    cache = make_cache(num_window_blocks=5)
    serve(cache, tokens(*range(16)), pins=(Pin(0, 12, rank=9),))
    for start in (50, 70, 90):
        serve(cache, tokens(*range(start, start + 12)))
    assert cache.match(tokens(*range(12), 1), KEY).num_tokens == 12
    cache.pins.remove(tokens(*range(16)), KEY, 0.0)
    serve(cache, tokens(*range(120, 140)))
    assert cache.match(tokens(*range(12), 1), KEY).num_tokens == 0


def test_clearing_and_eviction_of_nodes_free_their_window_blocks():
    cache = KVCache(4, 4, windows=[(WINDOW, 8)])
    serve(cache, tokens(*range(12)))
    serve(cache, tokens(*range(50, 62)))  # evicts two of three nodes
    assert cache.stats().num_cached == 4 and cache.stats().columns.num_cached_window_blocks == 4
    running = begin(cache, tokens(*range(50, 62), 1))
    cache.clear(0.0)
    assert cache.stats().columns.num_cached_window_blocks == 0
    cache.check()
    cache.release(running, tokens(*range(50, 62), 1), 12, 0.0)
    assert cache.stats().columns.num_held_window_blocks == 0 and cache.stats().num_free == 4
    cache.check()


def test_events_name_the_group():
    cache = make_cache(num_window_blocks=2)
    serve(cache, tokens(*range(8)))
    serve(cache, tokens(*range(50, 54)))
    events = cache.history.since(0)
    assert events is not None
    assert [event.group for event in events if isinstance(event, BlockStored)] == [0, 1, 0, 1, 0, 1]
    assert [event.group for event in events if isinstance(event, BlockRemoved)] == [1]
    stored = [event for event in cache.snapshot() if isinstance(event, BlockStored)]
    assert sorted(event.group for event in stored) == [0, 0, 0, 1, 1]
    nodes = {event.node: event for event in stored if event.group == 0}
    assert all(nodes[event.node].tokens == event.tokens for event in stored)
