"""The blocks of sources: one set for each, shared, cached when unused, evicted for others."""

from __future__ import annotations

import random

import pytest

from quire.cache.sources import SourcePool
from quire.types.errors import InvalidRequest, SourceTooLong
from quire.types.source import EncoderInput

pytestmark = pytest.mark.pure


def source(number: int, length: int = 20) -> EncoderInput:
    return EncoderInput.of_tokens(tuple(range(number, number + length)))


def test_a_source_is_encoded_once_and_shared():
    pool, one = SourcePool(4, 16, 64), source(1)
    for _ in range(2):
        assert pool.can_hold(one)
        pool.hold(one)
    first, second = pool.join(one), pool.join(one)
    assert first.source is one and second.source is None and first.blocks == second.blocks and len(first.blocks) == 2
    pool.release(one)
    pool.release(one)
    pool.hold(one)  # cached
    assert pool.join(one).source is None
    pool.check()


def test_the_least_recently_used_is_evicted_and_held_ones_are_not():
    pool = SourcePool(4, 16, 64)
    one, two, three = source(1), source(2), source(3)
    for each in (one, two):
        pool.hold(each)
        pool.join(each)
    assert not pool.can_hold(three)
    pool.release(one)
    assert pool.can_hold(three)
    pool.hold(three)
    assert pool.join(three).source is three
    pool.check()
    assert not pool.can_hold(one)


def test_after_a_failed_step_it_is_encoded_again():
    pool, one = SourcePool(4, 16, 64), source(1)
    pool.hold(one)
    old = pool.join(one)
    pool.discard(one)
    pool.hold(one)
    new = pool.join(one)
    assert new.source is one and set(new.blocks).isdisjoint(old.blocks)
    pool.release(one)
    pool.check()
    pool.release(one)
    pool.check()


def test_what_does_not_fit_is_refused_with_both_numbers():
    pool = SourcePool(4, 16, 50)
    with pytest.raises(SourceTooLong, match="60 tokens, 50 is the limit"):
        pool.check_fits(source(0, 60))
    with pytest.raises(InvalidRequest, match="reads a source"):
        pool.check_fits(None)


def test_every_block_has_one_owner_whatever_happens():
    rng, pool, held = random.Random(0), SourcePool(12, 16, 64), []
    for _ in range(2000):
        one = source(rng.randrange(8), rng.randrange(1, 60))
        if rng.random() < 0.5 and pool.can_hold(one):
            pool.hold(one)
            pool.join(one)
            held.append(one)
        elif held and rng.random() < 0.1:
            pool.discard(rng.choice(held))
        elif held:
            pool.release(held.pop(rng.randrange(len(held))))
        pool.check()
