"""Sizing a fleet for a trace: more load needs more replicas, shared prefixes need fewer, and roles shorten gaps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from quire.bench.fleet.handover import KVLink
from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.sizing import (
    SIZES,
    FleetGoals,
    FleetSize,
    choose_fleet,
    prefill_counts,
    size_fleet,
    trace_request,
)

pytestmark = pytest.mark.pure

SPEED = ReplicaSpeed(prompt_rate=1000, cache_tokens=20_000)
GOALS = FleetGoals(first_token=1.2, token_gap=1.0)
STRICT = FleetGoals(first_token=2.0, token_gap=0.1)
LINK = KVLink(20_000)


def trace(rate: float, num_shared: int):
    prompts = [[*range(num_shared), *([-number] * (512 - num_shared))] for number in range(120)]
    return [trace_request(n, n / rate, prompt, 20, "key") for n, prompt in enumerate(prompts)]


def long_prompts_and_answers():
    """Prompts of 0.75 s and answers of 6 s, 0.8 a second: some prompt is computed half of the time."""
    rng, now = random.Random(1), 0.0
    for number in range(120):
        now += rng.expovariate(0.8)
        yield trace_request(number, now, [number] * 750, 150, "key")


def size(num_replicas: int, num_prefill: int, first_token: float, token_gap: float) -> FleetSize:
    return FleetSize(num_replicas, num_prefill, first_token, first_token, token_gap, token_gap, 0.0, 0.5)


def proposed(requests, goals: FleetGoals = GOALS, link: KVLink | None = None) -> FleetSize:
    return choose_fleet(size_fleet(requests, SPEED, goals, link), goals)


def test_the_proposal_grows_with_the_load():
    counts = [proposed(trace(rate, 0)).num_replicas for rate in (1, 3, 6)]
    assert counts == sorted(counts) and counts[0] == 1 and counts[-1] >= 3


def test_shared_prefixes_need_fewer_replicas():
    alone, shared = (proposed(trace(6, num_shared)) for num_shared in (0, 448))
    assert shared.num_replicas < alone.num_replicas and shared.hit_rate > 0.7 > alone.hit_rate


def test_requests_of_other_tenants_share_nothing():
    requests = [trace_request(n, float(n), list(range(256)), 5, n) for n in range(30)]
    assert size_fleet(requests, SPEED, GOALS)[0].hit_rate == 0.0


def test_one_size_more_than_meets_the_goals_is_simulated():
    sizes = size_fleet(trace(0.5, 0), SPEED, GOALS)
    assert [each.num_replicas for each in sizes] == list(SIZES[:2])
    assert sizes[0].missed(GOALS) == 1.0


def test_fleets_grow_until_more_replicas_bring_nothing():
    impossible = FleetGoals(1e-9, 1e-9)
    sizes = size_fleet(trace(0.5, 0), SPEED, impossible)
    assert [each.num_replicas for each in sizes] == list(SIZES[:3])
    assert choose_fleet(sizes, impossible).num_replicas == 1


def test_long_prompts_beside_long_answers_get_roles_because_of_the_gaps():
    requests, speed = list(long_prompts_and_answers()), replace(SPEED, decode_seconds=0.04)
    sizes = size_fleet(requests, speed, STRICT, LINK)
    best = choose_fleet(sizes, STRICT)
    assert best.num_prefill and best.missed(STRICT) == 1.0
    both = [each for each in sizes if not each.num_prefill and each.num_replicas <= best.num_replicas]
    assert both and all(each.token_gap_p99 > STRICT.token_gap > best.token_gap_p99 for each in both)
    assert not choose_fleet(size_fleet(requests, speed, STRICT), STRICT).num_prefill  # without a link


def test_a_light_trace_gets_one_replica_that_does_both():
    best = proposed(trace(0.2, 0), STRICT, LINK)
    assert (best.num_replicas, best.num_prefill, dict(best.roles)) == (1, 0, {"both": 1})


def test_sensible_splits_of_every_size_are_simulated():
    assert [prefill_counts(count) for count in (1, 2, 3, 4, 8)] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 4, 7],
    ]
    roles = [dict(each.roles) for each in size_fleet(trace(0.2, 0), SPEED, STRICT, LINK)]
    assert roles == [{"both": 1}, {"both": 2}, {"prefill": 1, "decode": 1}]


def test_too_few_prefill_replicas_are_not_simulated_again_beside_more_decode_replicas():
    sizes = size_fleet(trace(6, 0), SPEED, STRICT, LINK)  # three seconds of prompts in a second
    counts = [(each.num_replicas, each.num_prefill) for each in sizes]
    assert (2, 1) in counts and (3, 1) not in counts and (3, 2) in counts and (4, 2) not in counts


def test_replicas_that_do_both_are_preferred_unless_roles_are_clearly_better():
    goals = FleetGoals(2.0, 0.1)
    meets, split = size(2, 0, 1.9, 0.09), size(2, 1, 0.5, 0.01)
    assert choose_fleet([size(1, 0, 9.0, 0.3), meets, split], goals) is meets
    assert choose_fleet([size(2, 0, 1.0, 0.2), split, size(3, 0, 1.0, 0.05)], goals) is split
    late, little = size(2, 0, 4.0, 0.1), size(2, 1, 3.8, 0.1)
    assert choose_fleet([late, little], goals) is late  # both miss; 5 % are not worth roles
    assert choose_fleet([late, clearly := size(2, 1, 2.5, 0.1)], goals) is clearly
