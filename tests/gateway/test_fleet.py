"""The gateway's count of what it sent, beside what replicas report."""

from __future__ import annotations

import pytest

from quire.gateway.balancers.contract import BalancedRequest, BalancerChoice, Replica, all_balancers
from quire.gateway.estimate import Estimator, estimate
from quire.gateway.fleet import Fleet
from quire.types.load import LoadReport

pytestmark = pytest.mark.pure


def only(fleet: Fleet) -> Replica:
    (replica,) = fleet.replicas()
    return replica


def test_requests_count_until_a_report_that_was_asked_for_later():
    fleet = Fleet()
    fleet.add("r")
    fleet.sent("1", BalancerChoice("r", num_cached=60), 100, now=10.0)
    assert (only(fleet).sent_requests, only(fleet).sent_tokens, only(fleet).num_open) == (1, 40, 1)
    fleet.report("r", LoadReport(), asked_at=9.0)
    assert only(fleet).sent_requests == 1
    fleet.report("r", LoadReport(num_running=1), asked_at=11.0)
    assert (only(fleet).sent_requests, only(fleet).sent_tokens, only(fleet).num_open) == (0, 0, 1)
    assert only(fleet).age(12.0) == 1.0
    fleet.ended("1")
    assert only(fleet).num_open == 0


def test_the_queue_of_a_report_is_that_of_the_moment_at_which_it_came():
    fleet = Fleet()
    fleet.add("r")
    fleet.sent("1", BalancerChoice("r"), 1000, now=10.0)
    fleet.sent("2", BalancerChoice("r"), 1000, now=11.5)
    load = LoadReport(num_running=1, prompt_tokens=500, prompt_rate=500.0)
    fleet.report("r", load, asked_at=11.0, came_at=13.0)  # the engine was in a step of two seconds
    assert only(fleet).sent_requests == 1 and only(fleet).age(13.5) == 0.5
    (terms,) = Estimator().terms(fleet.replicas(), 13.5)
    assert estimate(terms, 500, 0, 13.5).first_token == pytest.approx(0.5 + 2.0 + 1.0)  # rest, sent since, its own


@pytest.mark.parametrize("waited, expected", [(0.0, 2.0), (0.5, 1.5), (1.0, 1.0), (1.5, 0.5), (3.0, 0.0)])
def test_prompts_that_were_answered_are_not_taken_from_the_queue_a_second_time(waited, expected):
    """Three prompts of a second each: the first is answered after one, when two are left."""
    fleet = Fleet()
    fleet.add("r")
    for name in ("1", "2", "3"):
        fleet.sent(name, BalancerChoice("r"), 1000, now=0.0)
    fleet.report("r", LoadReport(num_running=3, prompt_tokens=3000, prompt_rate=1000.0), asked_at=1.0)
    fleet.answered("1")
    (terms,), now = Estimator().terms(fleet.replicas(), 2.0), 2.0 + waited
    assert estimate(terms, 1000, 0, now).queue == pytest.approx(expected)
    choice = all_balancers()["cache"].make().choose(BalancedRequest(1000, expected_output=0), fleet.replicas(), now)
    assert choice is not None and choice.first_token_seconds == pytest.approx(expected + 1.0)


def test_an_answer_that_comes_sooner_than_expected_shortens_the_queue():
    fleet = Fleet()
    fleet.add("r")
    fleet.sent("1", BalancerChoice("r"), 3000, now=0.0)
    fleet.report("r", LoadReport(num_running=1, prompt_tokens=3000, prompt_rate=1000.0), asked_at=1.0)
    fleet.answered("1")  # most of it was cached
    (terms,) = Estimator().terms(fleet.replicas(), 1.2)
    assert estimate(terms, 1000, 0, 1.2).queue == 0.0


def test_what_has_been_answered_and_has_ended_since_a_report_is_not_in_its_queue_any_more():
    fleet = Fleet()
    fleet.add("r")
    for name, num_tokens in (("1", 1000), ("2", 300), ("3", 200)):
        fleet.sent(name, BalancerChoice("r"), num_tokens, now=0.0)
    fleet.report("r", LoadReport(num_running=3, prompt_tokens=600), asked_at=1.0)  # 900 of the first are computed
    assert (only(fleet).answered_tokens, only(fleet).ended_requests) == (0, 0)
    fleet.answered("1")
    assert only(fleet).answered_tokens == 100  # the two others are still to come
    fleet.answered("2")
    fleet.ended("1")
    fleet.ended("2")
    assert (only(fleet).answered_tokens, only(fleet).ended_requests, only(fleet).num_open) == (400, 2, 1)
    fleet.ended("3")
    assert (only(fleet).answered_tokens, only(fleet).ended_requests, only(fleet).num_open) == (600, 3, 0)
    fleet.report("r", LoadReport(), asked_at=2.0)
    assert (only(fleet).answered_tokens, only(fleet).ended_requests) == (0, 0)


def test_an_end_that_no_report_has_counted_takes_nothing_from_the_report():
    fleet = Fleet()
    fleet.add("r")
    fleet.report("r", LoadReport(num_running=1, prompt_tokens=500), asked_at=1.0)  # of another gateway
    fleet.sent("1", BalancerChoice("r"), 100, now=1.1)
    fleet.answered("1")
    fleet.ended("1")
    assert only(fleet) == Replica("r", load=LoadReport(num_running=1, prompt_tokens=500), reported_at=1.0)


def test_a_replica_that_never_reports_is_judged_by_what_was_sent():
    fleet = Fleet()
    fleet.add("r")
    fleet.sent("1", BalancerChoice("r"), 100, now=0.0)
    fleet.sent("2", BalancerChoice("r"), 50, now=0.0)
    fleet.answered("1")
    assert (only(fleet).sent_requests, only(fleet).sent_tokens) == (2, 50)
    fleet.ended("2")
    fleet.ended("2")
    fleet.ended("unknown")
    assert (only(fleet).sent_requests, only(fleet).sent_tokens, only(fleet).num_open) == (1, 0, 1)


def test_requests_of_a_removed_replica_end_without_effect():
    fleet = Fleet()
    fleet.add("r", weight=2.0)
    fleet.sent("1", BalancerChoice("r"), 100, now=0.0)
    fleet.remove("r")
    fleet.sent("2", BalancerChoice("r"), 100, now=0.0)
    fleet.add("r", weight=3.0, is_available=False)
    fleet.ended("1")
    fleet.ended("2")
    assert only(fleet) == Replica("r", is_available=False, weight=3.0)
