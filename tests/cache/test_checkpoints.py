"""Checkpoints: states in the tree, at which requests resume."""

from __future__ import annotations

from array import array

import pytest

from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import KVCache, Lease
from quire.cache.lease import NO_SLOT
from quire.types.events import CheckpointRemoved, CheckpointStored
from quire.types.request import Pin
from tests.cache.serving import KEY, begin, tokens

pytestmark = pytest.mark.pure

SHARED = tuple(range(100, 118))  # ends inside a block


def make_cache(num_states: int = 8, every: int = 4096, grain: int = 1) -> KVCache:
    return KVCache(64, 4, num_states=num_states, spacing=CheckpointSpacing(every, grain))


def serve(
    cache: KVCache, prompt: array[int], session: str | None = None, pins: tuple[Pin, ...] = (), now: float = 0.0
) -> int:
    """Run a whole request in one step; return where it resumed."""
    lease = begin(cache, prompt, now, pins=pins)
    cache.take_saves(lease, lease.num_hit, len(prompt), now)
    cache.release(lease, prompt, len(prompt), now, session, state_at=len(prompt))
    cache.check()
    return lease.num_hit


def test_a_request_resumes_where_a_prompt_and_an_answer_ended():
    cache = make_cache()
    prompt = tokens(*range(11))
    lease = begin(cache, prompt)
    assert lease.state is not None and (lease.state.source, lease.num_hit) == (NO_SLOT, 0)
    [(position, slot)] = cache.take_saves(lease, 0, 11, 0.0)
    assert position == 10 and slot != lease.state.target
    live = lease.state.target
    prompt.extend((50, 51, 52))  # the answer
    assert cache.extend(lease, 14, 0.0)
    cache.release(lease, prompt, 13, 0.0, state_at=13)
    again = cache.match(tokens(*range(11)), KEY, 10)
    assert (again.num_tokens, again.state) == (10, slot)
    turn = cache.match(tokens(*range(11), 50, 51, 52, 60, 61), KEY, 15)
    assert (turn.num_tokens, turn.state) == (13, live), "the live slot became the checkpoint"
    cache.check()


def test_a_shared_prefix_is_a_checkpoint_from_the_third_visit_on():
    cache = make_cache()
    resumed = [serve(cache, tokens(*SHARED, visit, 1, 2)) for visit in range(40)]
    assert resumed == [0, 0] + [len(SHARED)] * 38


def test_a_conversation_computes_each_token_once():
    cache, text = make_cache(num_states=4), tokens(1)
    for turn in range(20):
        text.extend(range(10 * turn, 10 * turn + 7))
        lease = begin(cache, text)
        assert lease.num_hit == (len(text) - 8 if turn else 0)
        cache.take_saves(lease, lease.num_hit, len(text), 0.0)
        cache.release(lease, text, len(text), 0.0, "s", state_at=len(text))
        text.append(9)  # sampled, and not computed
        cache.check()


def test_long_prompts_have_checkpoints_at_regular_distances():
    cache = make_cache(every=8)
    lease = begin(cache, tokens(*range(30)))
    assert [position for position, _ in cache.take_saves(lease, 0, 20, 0.0)] == [8, 16]
    assert [position for position, _ in cache.take_saves(lease, 20, 30, 0.0)] == [24, 29]


def test_checkpoints_are_made_where_the_device_can_save_a_state():
    cache = make_cache(grain=4)
    lease = begin(cache, tokens(*SHARED, 1))
    assert lease.state is not None and lease.state.wanted == [16]
    assert not cache.want(lease, 3) and cache.want(lease, 11) and lease.state.wanted == [8, 16]
    assert [position for position, _ in cache.take_saves(lease, 0, 19, 0.0)] == [8, 16]


def test_a_wanted_checkpoint_is_made_only_ahead_of_planned_steps():
    cache, prompt = make_cache(), tokens(*range(20))
    lease = begin(cache, prompt)
    cache.take_saves(lease, 0, 8, 0.0)
    assert not cache.want(lease, 8) and cache.want(lease, 9) and cache.want(lease, 19)
    [(position, _)] = cache.take_saves(lease, 8, 12, 0.0)
    assert position == 9 and cache.want(lease, 9), "it is saved, but not in the tree yet"
    cache.seal(lease, prompt, 12, 0.0)
    assert cache.match(tokens(*range(9), 99), KEY).num_tokens == 9
    cache.check()


def test_without_a_free_slot_a_checkpoint_is_left_out():
    cache = make_cache(num_states=2)
    lease, other = begin(cache, tokens(*range(9))), begin(cache, tokens(*range(50, 59)))
    assert cache.take_saves(lease, 0, 9, 0.0) == []
    assert not cache.can_start(cache.match(tokens(1, 2), KEY, 1), 2, 0.0)
    cache.release(other, tokens(*range(50, 59)), 9, 0.0, state_at=9)
    assert cache.can_start(cache.match(tokens(1, 2), KEY, 1), 2, 0.0)
    cache.check()


def test_a_live_state_whose_position_is_unknown_or_not_computed_is_freed():
    cache, prompt = make_cache(), tokens(*range(9))
    for state_at in (None, 9):
        lease = begin(cache, prompt)
        cache.release(lease, prompt, 6, 0.0, state_at=state_at)
        assert cache.stats().columns.num_checkpoints == 0 and cache.stats().columns.num_held_states == 0
    cache.check()


def running(cache: KVCache, prompt: array[int]) -> Lease:
    """Start a request and compute its prompt in one step."""
    lease = begin(cache, prompt)
    cache.take_saves(lease, lease.num_hit, len(prompt), 0.0)
    cache.seal(lease, prompt, len(prompt), 0.0)
    cache.check()
    return lease


@pytest.mark.parametrize("num_tokens", [3, 11])
def test_a_checkpoint_inside_a_block_is_found_while_the_block_is_written(num_tokens: int):
    cache, text = make_cache(), tokens(*range(num_tokens))
    lease = running(cache, text)
    hit = cache.match(text, KEY, num_tokens - 1)
    assert hit.num_tokens == num_tokens - 1 and hit.source == lease.blocks[-1]
    follower = begin(cache, text)
    assert follower.copy is not None and follower.copy[:2] == (lease.blocks[-1], follower.blocks[-1])
    text.extend((50, 51))
    assert cache.extend(lease, len(text), 0.0)
    cache.seal(lease, text, len(text), 0.0)
    cache.check()
    assert cache.match(tokens(*text, 1), KEY).depth == len(text) // 4 * 4, "only whole blocks and heads are in the tree"
    assert cache.match(tokens(*text, 1), KEY).num_tokens == num_tokens - 1
    cache.release(lease, text, len(text), 0.0, state_at=len(text))
    cache.check()
    assert cache.match(tokens(*text, 1), KEY).num_tokens == len(text)


def test_a_head_leaves_the_tree_when_its_block_is_filled_like_another():
    cache, text = make_cache(), tokens(*range(8))
    short, long = begin(cache, text[:7]), begin(cache, text)
    for lease, end in ((short, 7), (long, 7)):  # the second one has computed all of its tokens but one
        cache.take_saves(lease, 0, end, 0.0)
        cache.seal(lease, text, end, 0.0)
        cache.check()
    assert short.blocks[1] in cache._tree and long.blocks[1] in cache._tree
    cache.seal(long, text, 8, 0.0)
    cache.seal(short, text, 8, 0.0)
    cache.check()
    assert short.path[1] == long.blocks[1] and short.blocks[1] not in cache._tree
    assert [cache.match(tokens(*range(end), 30), KEY).num_tokens for end in (5, 6, 7)] == [0, 6, 7]


def test_a_request_that_leaves_the_tree_inside_a_block_stores_a_longer_head_step_by_step():
    cache, text = make_cache(), tokens(1, 2, 3)
    lease = running(cache, text[:2])
    assert cache.want(lease, 3)
    text.extend((4,))
    assert cache.extend(lease, 3, 0.0) and [at for at, _ in cache.take_saves(lease, 2, 3, 0.0)] == [3]
    cache.seal(lease, text, 3, 0.0)
    cache.check()
    assert cache.match(tokens(1, 9), KEY).num_tokens == 1 and cache.match(tokens(1, 2, 3, 9), KEY).num_tokens == 3
    cache.release(lease, text, 3, 0.0)
    assert cache.stats().num_cached == 1 and cache.stats().columns.num_checkpoints == 2
    cache.check()


def test_a_head_is_not_kept_beside_a_block_that_begins_with_its_tokens():
    cache = make_cache()
    lease = running(cache, tokens(1, 2))
    serve(cache, tokens(1, 2, 3, 4))
    assert cache.stats().num_cached == 1 and lease.blocks[0] in cache._tree
    assert cache.extend(lease, 3, 0.0)
    cache.release(lease, tokens(1, 2, 3), 3, 0.0, state_at=3)
    assert cache.stats().num_cached == 1 and cache.stats().num_free == 63
    assert cache.match(tokens(1, 2, 3, 9), KEY).num_tokens == 3
    cache.check()


def test_checkpoints_are_evicted_by_last_use():
    cache = make_cache(num_states=3)
    for start in (0, 20):
        lease = begin(cache, prompt := tokens(*range(start, start + 8)))
        cache.release(lease, prompt, 8, 0.0, state_at=8)
    assert cache.match(tokens(*range(8), 1), KEY).num_tokens == 8
    lease = begin(cache, tokens(*range(8), 1))  # uses the first one
    cache.release(lease, tokens(*range(8), 1), 8, 0.0)
    first, second = begin(cache, tokens(*range(40, 48))), begin(cache, tokens(*range(60, 68)))
    assert cache.match(tokens(*range(8), 1), KEY).num_tokens == 8
    assert cache.match(tokens(*range(20, 28), 1), KEY).num_tokens == 0
    assert cache.match(tokens(*range(20, 28), 1), KEY).depth == 8
    assert [lease.state is not None for lease in (first, second)] == [True, True]
    cache.check()


def test_a_checkpoint_is_shared_by_all_blocks_that_begin_with_its_tokens():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 7))
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 8, 8))  # leaves the tree at position 6
    node = cache.match(tokens(1, 2, 3, 4, 5, 6, 8, 8), KEY).path[1]
    assert cache.match(tokens(1, 2, 3, 4, 5, 6, 9), KEY).num_tokens == 6
    cache._pool.drop(node, 0.0)
    assert cache.match(tokens(1, 2, 3, 4, 5, 6, 9), KEY).num_tokens == 6, "another block begins with its tokens"
    cache.check()
    cache._pool.drop(cache.match(tokens(1, 2, 3, 4, 5, 6, 7, 7), KEY).path[1], 0.0)
    assert cache.stats().columns.num_checkpoints == 0
    cache.check()


def test_a_longer_block_keeps_the_checkpoint_of_the_tail_that_it_replaces():
    cache = make_cache()
    serve(cache, tokens(1, 2, 3, 4, 5, 6))
    serve(cache, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert cache.stats().num_cached == 3
    assert cache.match(tokens(1, 2, 3, 4, 5, 6, 50), KEY).num_tokens == 6


def test_pins_and_sessions_keep_checkpoints():
    cache = make_cache(num_states=4)
    serve(cache, tokens(*range(8)), pins=(Pin(0, 8, rank=5),))
    serve(cache, tokens(*range(20, 29)), session="s")
    for start in range(40, 100, 10):
        serve(cache, tokens(*range(start, start + 8)))
    assert cache.match(tokens(*range(20, 29), 1), KEY).num_tokens == 9
    assert cache.match(tokens(*range(8), 1), KEY).num_tokens in (7, 8)
    assert cache.stats().columns.num_held_states == 1
    cache.sessions.close("s", 0.0)
    cache.pins.remove(tokens(*range(8)), KEY, 0.0)
    for start in range(200, 260, 10):
        serve(cache, tokens(*range(start, start + 8)))
    assert cache.match(tokens(*range(20, 29), 1), KEY).num_tokens == 0
    assert cache.match(tokens(*range(8), 1), KEY).num_tokens == 0


def test_a_session_is_closed_when_all_other_states_are_held():
    cache = make_cache(num_states=2)
    serve(cache, tokens(*range(8)), session="s")
    leases = [begin(cache, tokens(start, start)) for start in (50, 60) if can_start(cache, tokens(start, start))]
    assert len(leases) == 2 and cache.stats().num_sessions == 0
    cache.check()


def can_start(cache: KVCache, prompt: array[int]) -> bool:
    return cache.can_start(cache.match(prompt, KEY, len(prompt) - 1), len(prompt), 0.0)


def test_a_source_is_held_until_the_first_step_is_over():
    cache, prompt = make_cache(), tokens(*range(9), 1)
    serve(cache, prompt[:9])
    lease = begin(cache, prompt)
    state = lease.state
    assert state is not None and state.source == cache.match(prompt, KEY, 9).state != state.target
    assert cache.stats().columns.num_held_states == 2
    cache.seal(lease, prompt, 10, 0.0)
    assert state.source == NO_SLOT and cache.stats().columns.num_held_states == 1
    cache.check()


def drafting(cache: KVCache) -> tuple[Lease, int, int]:
    lease = begin(cache, tokens(*range(6)))
    slot = cache.branch_state(lease, 0.0)
    assert lease.state is not None and slot is not None
    return lease, lease.state.target, slot


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_branch_keeps_one_of_two_slots(is_accepted):
    cache = make_cache(num_states=2)
    lease, old, new = drafting(cache)
    assert cache.stats().columns.num_held_states == 2
    cache.settle_state(lease, is_accepted, 0.0)
    assert lease.state is not None and lease.state.target == (new if is_accepted else old)
    assert cache.stats().columns.num_held_states == 1
    cache.check()


def test_a_release_frees_both_slots_of_a_branch():
    cache = make_cache(num_states=2)
    lease, _, _ = drafting(cache)
    cache.release(lease, tokens(*range(6)), 4, 0.0)
    assert cache.stats().columns.num_held_states == 0
    cache.check()


def test_states_are_neither_promised_nor_forked():
    cache, prompt = make_cache(), tokens(*range(9))
    lease = begin(cache, prompt)
    assert cache.promise(lease, prompt, 9, 0.0) == [] and not cache.can_fork(lease, 8)
    assert cache.match(prompt, KEY).depth == 0


def test_a_request_sees_the_leader_that_computes_the_next_block_again():
    cache, prompt = make_cache(num_states=2), tokens(*range(16))
    serve(cache, prompt)
    serve(cache, tokens(50, 51))
    serve(cache, tokens(60, 61))  # all checkpoints of the prompt are evicted
    leader = begin(cache, prompt)
    follower = cache.match(prompt, KEY, 15)
    assert (follower.num_tokens, follower.depth, follower.leader) == (0, 15, leader)


def test_a_hit_that_needs_no_copy_ends_at_a_checkpoint_between_blocks():
    cache = make_cache(every=4)
    serve(cache, tokens(*range(10)))
    hit = cache.match(tokens(*range(10), 1), KEY)
    assert hit.num_tokens == 10 and cache.without_copy(hit)[:2] == (hit.blocks, 8)
    assert cache.without_copy(hit).state == cache.match(tokens(*range(8), 1), KEY).state


def test_clearing_frees_all_checkpoints():
    cache, prompt = make_cache(), tokens(*range(9), 1)
    serve(cache, prompt[:9], session="s")
    lease = begin(cache, prompt)
    cache.take_saves(lease, lease.num_hit, 10, 0.0)
    cache.clear(0.0)
    assert cache.stats().columns.num_checkpoints == 0
    cache.check()
    cache.release(lease, prompt, 10, 0.0, state_at=10)
    assert cache.stats().columns.num_held_states == 0
    cache.check()


def test_events_build_a_copy_of_the_checkpoints():
    cache = make_cache(num_states=4)
    for start in (0, 20, 40):
        serve(cache, tokens(*range(start, start + 9)))
    serve(cache, tokens(*range(40, 49), 1))
    text = tokens(*range(60, 67))
    cache.release(running(cache, text), tokens(*text, 1), 7, 0.0, state_at=7)  # a head, and then more of its block
    events = cache.history.since(0)
    assert events is not None and any(isinstance(event, CheckpointRemoved) for event in events)
    present: set[tuple[int, int]] = set()
    for event in events:
        if isinstance(event, CheckpointStored):
            present.add((event.node, event.position))
        elif isinstance(event, CheckpointRemoved):
            present.remove((event.node, event.position))
    nodes = {event.node for event in cache.snapshot()}
    shown = {(event.node, event.position) for event in cache.snapshot() if isinstance(event, CheckpointStored)}
    assert shown == {place for place in present if place[0] in nodes} and len(shown) == 4
