"""A prefix shared by several requests while one of them computes it."""

from __future__ import annotations

import pytest

from quire.types.errors import StepFailed
from quire.types.request import FinishReason
from tests.scheduler.simulator import counts, expected_output, make, request

pytestmark = pytest.mark.pure


def test_two_requests_with_the_same_new_prefix_compute_it_once():
    sim = make(max_step_tokens=16)
    shared = tuple(range(32))
    sim.run([(0.0, request("a", (*shared, 50, 51))), (0.0, request("b", (*shared, 60, 61)))])
    assert sim.device.num_computed == 32 + 2 + 2 + 2 * 7
    assert sim.records["b", 0].num_hit == 32


def test_requests_with_the_same_new_prefix_are_computed_in_one_step():
    sim = make()
    shared = tuple(range(32))
    for name, token in (("a", 50), ("b", 60), ("c", 70)):
        sim.submit(request(name, (*shared, token, 99)))
    sim.step()
    assert counts(sim.plans[0]) == {"a": 34, "b": 2, "c": 2}
    assert not any(0 in group.rows for group in sim.plans[0].groups), "each of a's tokens reads a different part of it"
    assert [(len(group.rows), group.num_blocks) for group in sim.plans[0].groups] == [(2, 8)]
    sim.step()
    assert [(len(group.rows), group.num_blocks) for group in sim.plans[1].groups] == [(3, 8)]
    sim.run()
    for name, token in (("a", 50), ("b", 60), ("c", 70)):
        assert sim.records[name, 0].tokens == expected_output((*shared, token, 99), 8)
    assert sim.records["c", 0].num_hit == 32


def test_a_request_that_reads_a_prefix_in_flight_can_lead_another_in_the_same_step():
    sim = make()
    shared, more = tuple(range(20)), tuple(range(100, 112))
    sim.submit(request("a", (*shared, 1)))
    sim.submit(request("b", (*shared, *more, 2)))
    sim.submit(request("c", (*shared, *more, 3)))
    sim.step()
    assert counts(sim.plans[0]) == {"a": 21, "b": 13, "c": 1}
    sim.run()
    assert sim.records["c", 0].tokens == expected_output((*shared, *more, 3), 8)


def test_no_block_is_copied_in_the_step_that_computes_it():
    sim = make()
    shared = tuple(range(18))  # four and a half blocks
    sim.submit(request("a", (*shared, *range(50, 60))))
    sim.submit(request("b", (*shared, *range(60, 70))))
    sim.submit(request("c", range(28), n=2))
    sim.step()
    assert counts(sim.plans[0])["b"] == 12 and not sim.plans[0].copies
    sim.run()
    assert sim.records["b", 0].tokens == expected_output((*shared, *range(60, 70)), 8)
    assert sim.records["c", 1].tokens == expected_output(tuple(range(28)), 8, sample=1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fails", [("a",), ("a", "b", "c")])
def test_requests_that_depend_on_a_failed_part_start_again(depth, fails):
    sim = make(depth=depth, max_step_tokens=40)
    shared = tuple(range(32))
    for name, token in (("a", 50), ("b", 60), ("c", 70), ("d", 80)):  # d does not fit: it is in the next step
        sim.submit(request(name, (*shared, token, *range(90, 92))))
    sim.device.refuse = lambda part: StepFailed("no") if len(sim.plans) == 1 and part.request_id in fails else None
    sim.run()
    assert {*counts(sim.plans[0])} >= {"a", "b"}
    assert isinstance(sim.records["a", 0].error, StepFailed)
    for name, token in (("b", 60), ("c", 70), ("d", 80)):
        assert sim.records[name, 0].tokens == expected_output((*shared, token, *range(90, 92)), 8)


def test_the_second_request_computes_the_prefix_itself_when_the_first_is_cancelled():
    sim = make(max_step_tokens=16)
    shared = tuple(range(32))
    sim.submit(request("a", (*shared, 50)))
    sim.submit(request("b", (*shared, 60)))
    sim.step()
    assert "b" not in counts(sim.plans[0])
    assert sim.scheduler.cancel("a", sim.now)
    sim.run()
    assert sim.records["a", 0].finish is FinishReason.CANCELLED
    assert sim.records["b", 0].tokens == expected_output((*shared, 60), 8)


def test_a_request_inherits_the_urgency_of_one_that_waits_for_its_blocks():
    sim = make(max_step_tokens=16, max_partial_prompts=1)
    shared = tuple(range(60))
    sim.submit(request("slow", (*shared, 1), priority=5))
    sim.step()
    sim.submit(request("middle", range(100, 160), priority=3))
    sim.submit(request("urgent", (*shared, 2), priority=0))
    sim.step()
    assert "slow" in counts(sim.plans[-1]) and "middle" not in counts(sim.plans[-1])
    sim.run()
    assert sim.records["urgent", 0].first_token_after < sim.records["middle", 0].first_token_after
