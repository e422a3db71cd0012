"""How long steps are expected to take, from those that were measured."""

from __future__ import annotations

import random

import pytest

from quire.scheduler.step_costs import StepCosts

pytestmark = pytest.mark.pure


def test_step_costs_interpolate_and_follow_a_change():
    costs = StepCosts()
    costs.record(1, 1.0)
    assert costs.seconds(1) == 1.0 and costs.seconds(3) > 1.0
    costs.record(8, 2.0)
    assert costs.seconds(7) == pytest.approx(1.0 + 6 / 7, rel=0.01)
    assert 1.1 < costs.seconds(4) < 1.0 + 3 / 7  # not measured: it may be the best, so it is tried
    costs.record(4, 1.2)
    assert costs.seconds(6) == pytest.approx(1.2 + 2 * 0.2 / 3, rel=0.01)  # not measured: as before the gap
    assert costs.seconds(12) == pytest.approx(2.8, rel=0.01)
    for seconds in (2.0, 4.0):
        for _ in range(100):
            costs.record(8, seconds)
    assert costs.seconds(8) == pytest.approx(4.0, rel=0.01)
    assert costs.seconds(1) > 1.1  # not measured again: it has followed


def test_a_step_without_tokens_tells_nothing():
    """Requests were admitted, and there was no room for a token of theirs."""
    costs = StepCosts()
    costs.record(0, 0.1)
    assert not costs.has_measurements
    costs.record(1, 1.0)
    assert costs.seconds(1) == 1.0


def test_steps_with_prompts_bound_the_cost_of_sizes_that_were_never_tried():
    costs = StepCosts()
    for size, seconds in 5 * ((1, 1.0), (4, 1.4), (6, 2.8)):
        costs.record(size, seconds)
    assert costs.seconds(32) > 11  # as from 1 to 6
    costs.record(300, 50.0, is_decoding=False)
    assert costs.seconds(6) == pytest.approx(2.8, rel=0.01) and 5 < costs.seconds(32) < 10
    for _ in range(5):
        costs.record(33, 9.0)
    assert costs.seconds(33) == pytest.approx(9.0, rel=0.01)


def test_two_sizes_that_are_close_do_not_let_larger_steps_seem_free():
    """Chance made the larger one faster."""
    costs = StepCosts()
    for size, seconds in 5 * ((64, 50.0), (66, 49.5)):
        costs.record(size, seconds)
    costs.record(1000, 430.0, is_decoding=False)
    assert costs.seconds(92) > 54
    for _ in range(5):
        costs.record(8, 20.0)
    assert costs.seconds(92) > 58  # as from 8 to 66


def test_a_size_of_a_measured_tile_costs_at_most_the_tile():
    costs = StepCosts()
    for size, seconds in 5 * ((64, 40.0), (80, 52.0)):
        costs.record(size, seconds)
    assert costs.tile_seconds(64) == pytest.approx(40.0, rel=0.01)
    assert costs.tile_seconds(65) == pytest.approx(52.0, rel=0.01)
    assert costs.seconds(65) < 42 and costs.tile_seconds(30) == costs.seconds(30)


def test_noise_changes_no_cell_in_the_long_run():
    costs, rng = StepCosts(), random.Random(3)
    for size in (1, 4, 8):
        costs.record(size, float(size))
    for _ in range(3000):
        costs.record(1, rng.choice((0.5, 2.0)))
    assert 0.4 < costs.seconds(1) < 2.5 and 2.0 < costs.seconds(8) / costs.seconds(1) < 20


def test_a_size_that_was_measured_often_is_expected_to_take_as_long_later():
    """Else sizes that never pay would be tried whenever they have not been measured for a while."""
    costs = StepCosts()
    for _ in range(8):
        costs.record(4, 1.0)
        costs.record(8, 1.4)
    for _ in range(500):
        costs.record(4, 1.0)
    assert costs.seconds(8) > 1.37


def test_one_slow_step_counts_little():
    costs = StepCosts()
    for _ in range(20):
        costs.record(4, 1.0)
    costs.record(4, 100.0)
    assert costs.seconds(4) < 1.6
