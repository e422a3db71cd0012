"""The autoscaler on a simulated clock: it follows a ramp, does not flap, and goes to zero and back."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cluster.autoscale import Autoscaler, AutoscaleRule, FleetLoad

pytestmark = pytest.mark.pure

RULE = AutoscaleRule(1, 8, queue_seconds=2, tokens=1000, up_seconds=5, down_seconds=60, idle_seconds=120)
ZERO = AutoscaleRule(0, 8, queue_seconds=2, tokens=1000, up_seconds=5, down_seconds=60, idle_seconds=120)


def follow(rule: AutoscaleRule, tokens_at, seconds: int, start: int = 1, start_seconds: float = 10) -> list[int]:
    """The number of replicas at each second, if a new one takes `start_seconds` to be ready."""
    scaler, count = Autoscaler(rule), start
    ready_at = [0.0] * start
    counts = []
    for now in range(seconds):
        tokens = tokens_at(now)
        num_ready = sum(each <= now for each in ready_at)
        queue = max(tokens / max(num_ready, 1) - rule.tokens, 0.0) / 500 if tokens else 0.0
        load = FleetLoad(num_ready, 0 if num_ready else int(tokens > 0), int(tokens > 0 and num_ready), queue, tokens)
        count = scaler.decide(load, count, now).count
        ready_at = [*ready_at, *[now + start_seconds] * count][:count]
        counts.append(count)
    return counts


def changes(counts: list[int]) -> list[int]:
    """The differences that are not zero."""
    return [after - before for before, after in pairwise(counts) if after != before]


def test_it_follows_a_ramp_up_and_down_without_turning_back():
    counts = follow(RULE, lambda now: 6000 * min(now, 600 - now) // 300 if now < 600 else 0, 900)
    assert max(counts[280:330]) >= 6 and counts[-1] == 1
    signs = [change > 0 for change in changes(counts)]
    assert signs == sorted(signs, reverse=True)


@pytest.mark.parametrize("share", [0.75, 0.85, 0.95])
def test_noise_around_a_load_does_not_flap(share):
    rng = random.Random(1)
    counts = follow(RULE, lambda now: int(4000 * share * rng.uniform(0.93, 1.05)), 1200)
    assert changes(counts[60:]) in ([], [1])  # at a limit one more, which then stays


def test_a_peak_shorter_than_up_seconds_starts_nothing():
    assert changes(follow(RULE, lambda now: 7000 if now % 60 < 4 else 500, 600)) == []


def test_a_gap_shorter_than_down_seconds_stops_nothing():
    counts = follow(RULE, lambda now: 0 if now % 100 < 50 else 3500, 1000, start=4)
    assert changes(counts) == []


def test_a_load_that_swings_slowly_moves_no_more_often_than_the_load():
    counts = follow(RULE, lambda now: int(3000 + 2500 * math.sin(now / 600 * 2 * math.pi)), 3600)
    signs = [change > 0 for change in changes(counts)]
    turns = sum(before != after for before, after in pairwise(signs))
    assert turns <= 13  # two for each of six periods, and the first


def test_the_last_replica_stops_after_idle_seconds_and_the_first_starts_at_once():
    counts = follow(ZERO, lambda now: 500 if now < 50 or now >= 400 else 0, 500)
    assert counts[160] == 1 and counts[180] == 0 and counts[399] == 0 and counts[400] == 1


def test_a_queue_without_many_tokens_starts_replicas_too():
    scaler, count = Autoscaler(RULE), 2
    for now in range(10):
        count = scaler.decide(FleetLoad(2, 0, 50, 9.0, 100), count, now).count
    assert count == 4  # at most twice those that are ready


def test_a_fixed_number_is_kept():
    assert follow(AutoscaleRule(3, 3), lambda now: 100_000, 100, start=3) == [3] * 100


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=300), st.integers(0, 2))
def test_the_number_stays_within_the_limits(tokens, least):
    rule = AutoscaleRule(least, 5, tokens=1000, up_seconds=2, down_seconds=5, idle_seconds=5)
    assert all(least <= each <= 5 for each in follow(rule, lambda now: tokens[now], len(tokens), start=least))


def test_a_group_at_zero_is_started_by_requests_at_other_replicas_of_its_model_and_ends_with_them():
    scaler = Autoscaler(ZERO)
    assert scaler.decide(FleetLoad(), 0, 0).count == 0
    assert scaler.decide(FleetLoad(num_elsewhere=1), 0, 1).count == 1
    assert scaler.decide(FleetLoad(1, num_elsewhere=1), 1, 200).count == 1
    assert scaler.decide(FleetLoad(1), 1, 200 + 119).count == 1
    assert scaler.decide(FleetLoad(1), 1, 200 + 120).count == 0


def test_the_reason_says_which_tokens_are_meant():
    scaler, reason = Autoscaler(RULE), ""
    for now in range(10):
        decision = scaler.decide(FleetLoad(1, 0, 9, 0.0, 5000, "prompt tokens to compute"), 1, now)
        reason = decision.reason or reason
    assert "5000 prompt tokens to compute" in reason
