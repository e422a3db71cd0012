"""When an upstream gets no requests: breakers, outliers and the budget of retries, with a clock of the test."""

from __future__ import annotations

import pytest

from quire.gateway.health.breaker import MAX_PAUSE, Breaker, Circuit
from quire.gateway.health.outliers import PAUSE_SECONDS, Outliers
from quire.gateway.health.retries import RESERVE, RetryBudget

pytestmark = pytest.mark.pure


def test_a_circuit_opens_after_failures_in_a_row_and_lets_one_request_try():
    breaker = Breaker(3)
    for _ in range(2):
        breaker.fail(0.0)
    breaker.succeed()
    for _ in range(2):
        breaker.fail(0.0)
    assert breaker.allows(0.0)
    breaker.fail(0.0)
    assert breaker.state(0.5) is Circuit.OPEN and not breaker.allows(0.5)
    assert breaker.state(1.5) is Circuit.HALF_OPEN and breaker.allows(1.5)
    breaker.start(1.5)
    assert not breaker.allows(1.5)
    breaker.succeed()
    assert breaker.state(1.5) is Circuit.CLOSED


def test_the_pause_of_a_circuit_doubles_up_to_a_limit():
    breaker, now, pauses = Breaker(1), 0.0, []
    for _ in range(8):
        breaker.fail(now)
        began = now
        while breaker.state(now) is Circuit.OPEN:
            now += 0.5
        pauses.append(now - began)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0] and pauses[-1] == MAX_PAUSE


def test_a_trial_without_a_verdict_lets_another_one_try():
    breaker = Breaker(1)
    breaker.fail(0.0)
    breaker.start(2.0)
    breaker.give_up()
    assert breaker.allows(2.0)


def test_an_upstream_that_fails_more_often_than_the_others_is_ejected_for_a_while():
    outliers = Outliers()
    for step in range(20):
        for name in "abc":
            outliers.add(name, step * 0.1, name != "c" or step % 2 == 0, 0.1)
    assert outliers.is_ejected("c", 2.0) and not outliers.is_ejected("a", 2.0)
    assert not outliers.is_ejected("c", 2.0 + PAUSE_SECONDS)


def test_an_upstream_that_is_far_slower_than_the_others_is_ejected():
    outliers = Outliers()
    for step in range(12):
        for name, seconds in (("a", 0.2), ("b", 0.3), ("c", 4.0)):
            outliers.add(name, float(step), True, seconds)
    assert set(outliers.ejected(12.0)) == {"c"}


def test_no_more_than_half_of_the_fleet_is_ejected_and_none_if_all_fail_alike():
    outliers = Outliers()
    for step in range(40):
        for name in "abcd":
            outliers.add(name, step * 0.1, False, 0.1)
    assert outliers.ejected(4.0) == {}
    outliers.keep_only("ab")
    assert not outliers.is_ejected("d", 4.0)


def test_retries_are_a_share_of_the_requests():
    budget = RetryBudget(0.1)
    assert sum(budget.take() for _ in range(100)) == RESERVE
    for _ in range(50):
        budget.add_request()
    assert sum(budget.take() for _ in range(100)) == pytest.approx(5, abs=1)
