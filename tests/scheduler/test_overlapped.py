"""When a device with two steps in flight waits for a step with drafts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.overlapped import FIRST_PATIENCE, MOST_IN_ROW, OverlappedSpeculation
from quire.scheduler.proposals import DraftLimits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.speculation import SUSPENDED_TOKENS
from quire.types.request import Constraint, ConstraintKind, GenerateRequest, SamplingParams
from quire.types.step import Part, PartResult, StepPlan, StepResult, decode_part, draft_part
from tests.scheduler.test_speculation import Fixed

pytestmark = pytest.mark.pure
WAIT = 0.25  # seconds that the device waits for a step with drafts; a plain one takes a second

LIMITS = DraftLimits(7, 128, 256)


class Engine:
    """Samples token 5 everywhere, with up to two steps in flight, as the core does."""

    def __init__(
        self,
        drafter: Fixed,
        limits: DraftLimits = LIMITS,
        wait: float = WAIT,
        num_states: int = 0,
        num_blocks: int = 400,
    ) -> None:
        self.speculation = OverlappedSpeculation((drafter,), limits)
        cache = KVCache(num_blocks, num_states=num_states)
        self.scheduler = Scheduler(cache, SchedulerConfig(max_rows=64), self.speculation)
        self.num_waits = 0
        self.flights: deque[StepPlan] = deque()
        self.wait, self.now, self.plans = wait, 0.0, list[StepPlan]()

    def add(self, name: str, constraint: Constraint | None = None, **sampling: Any) -> None:
        params = SamplingParams(**({"max_tokens": 3000} | sampling))
        self.scheduler.add(GenerateRequest(name, (100, 101, 102), params, constraint=constraint), self.now)

    def collect(self) -> None:
        plan = self.flights.popleft()
        parts = []
        for part in plan.parts:
            held = next((place for place, draft in enumerate(part.drafts) if draft != 5), len(part.drafts))
            parts.append(PartResult((5,) * (held + 1) if part.num_logits else ()))
        has_drafts = any(part.drafts for part in plan.parts)
        seconds = 1.0 + 0.02 * plan.num_tokens + self.wait * has_drafts
        self.scheduler.commit(StepResult(plan.number, tuple(parts), seconds), self.now)
        self.scheduler.check()

    def run(self, steps: int) -> list[int]:
        """Return how many drafts each step had."""
        before = len(self.plans)
        while len(self.plans) < before + steps:
            self.now += 1.0
            if self.flights and self.scheduler.wants_results:
                self.num_waits += 1
                while self.flights:
                    self.collect()
            plan = self.scheduler.plan(self.now)
            if plan.parts:
                self.plans.append(plan)
                self.flights.append(plan)
            if len(self.flights) >= 2 or not plan.parts:
                self.collect()
            self.scheduler.drain()
        return [sum(len(part.drafts) for part in plan.parts) for plan in self.plans[before:]]


def test_drafts_that_hold_are_worth_the_wait():
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    assert engine.run(60)[-20:] == [7] * 20, "as many as the device takes"
    assert engine.speculation.num_accepted["fixed"] == engine.speculation.num_drafted["fixed"] > 100


def test_a_step_with_drafts_is_alone_in_flight_and_has_every_text():
    engine = Engine(Fixed([5] * 32))
    for name in "abc":
        engine.add(name)
    engine.add("off", speculate="off")
    engine.run(40)
    for plan in engine.plans[-10:]:
        assert len(plan.parts) == 4 and any(part.drafts for part in plan.parts)


def test_drafts_that_fail_leave_two_steps_in_flight():
    engine = Engine(Fixed([7] * 32))
    engine.add("a")
    counts = engine.run(600)
    assert sum(1 for count in counts[20:] if count) <= 5, "tried after 32, 64, 128, 256 steps"
    assert counts[-100:].count(0) >= 99


def test_without_drafts_no_step_is_waited_for():
    engine = Engine(Fixed([]))
    engine.add("a")
    engine.run(FIRST_PATIENCE + 10)
    assert not engine.scheduler.wants_results and len(engine.flights) == 1


def test_a_wait_that_costs_more_than_drafts_yield_is_not_repeated():
    engine = Engine(Fixed([5, 7, 7, 7, 7, 7, 7]), wait=5.0)
    engine.add("a")
    counts = engine.run(300)
    assert sum(1 for count in counts[20:] if count) <= 6


def test_a_prompt_is_computed_without_drafts():
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.run(30)
    engine.scheduler.add(GenerateRequest("long", tuple(range(600)), SamplingParams(max_tokens=9)), engine.now)
    engine.run(30)  # the first one admits it
    later = [plan for plan in engine.plans[31:] if any(part.num_tokens > 8 for part in plan.parts)]
    assert len(later) > 3 and not any(part.drafts for plan in later for part in plan.parts)
    assert any(part.drafts for part in engine.plans[-1].parts)


def test_no_step_has_more_drafts_than_the_device_takes():
    engine = Engine(Fixed([5] * 32), DraftLimits(3, 20, 24))
    for index in range(8):
        engine.add(str(index))
    counts = engine.run(60)
    assert max(counts) == 16
    assert max(len(part.drafts) for plan in engine.plans for part in plan.parts) <= 3


@pytest.mark.parametrize("constraint", [None, Constraint(ConstraintKind.JSON)], ids=["free", "constrained"])
def test_a_text_without_memory_for_drafts_is_rarely_waited_for(constraint):
    """A state needs a second slot for drafts, and there is none."""
    engine = Engine(Fixed([5] * 32), LIMITS._replace(has_states=True), num_states=1)
    engine.add("a", constraint)
    counts = engine.run(400)
    assert not any(counts)
    assert 0 < engine.num_waits <= 3 * 400 // SUSPENDED_TOKENS


def test_after_many_steps_with_drafts_a_few_have_none():
    engine = Engine(Fixed([5] * 32), num_blocks=4000)
    engine.add("a", max_tokens=30000)
    counts = engine.run(2 * MOST_IN_ROW)
    assert counts.count(0) < 20 and [0, 0, 0, 0] in [counts[at : at + 4] for at in range(MOST_IN_ROW, len(counts))]


def test_with_a_free_slot_a_text_with_states_has_drafts():
    engine = Engine(Fixed([5] * 32), LIMITS._replace(has_states=True), num_states=2)
    engine.add("a")
    assert sum(engine.run(100)[-20:]) > 40


def test_the_seconds_of_the_draft_model_are_those_of_its_own_step():
    """They are subtracted from the step after which they were spent, though steps are recorded later."""
    speculation = OverlappedSpeculation((Fixed([5]),), LIMITS)
    parts = (draft_part("a", 0, 9, (5, 5, 5)),)
    speculation._model_seconds = 10.0
    speculation.record_step(parts, 3, 25.0, is_usual=False)
    speculation._model_seconds = 0.0  # the next step is planned, without the model
    speculation.wants_results((), False)
    assert speculation._costs_with_drafts(1).seconds(3) == pytest.approx(15.0)


def test_steps_that_did_not_wait_do_not_tell_what_drafts_cost():
    """The end of a prompt that is cached but for a few tokens looks like a row with drafts."""
    speculation = OverlappedSpeculation((Fixed([5]),), LIMITS)
    prompt_end = Part("a", 0, 16, (1, 2, 3), 1, ())
    speculation.record_step((prompt_end, decode_part("b", 1, 9)), 4, 2.0, is_usual=True)
    speculation.wants_results((), False)
    assert not speculation._costs_with_drafts(2).has_measurements
    speculation.record_step((draft_part("a", 0, 9, (5, 5, 5)), decode_part("b", 1, 9)), 4, 3.0, is_usual=False)
    speculation.wants_results((), False)
    assert speculation._costs_with_drafts(2).seconds(4) == pytest.approx(3.0)


def test_full_blocks_of_a_text_with_drafts_are_found_once_its_outcomes_are_taken():
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.run(60)
    assert engine.speculation.num_accepted["fixed"] > 40, "most of its blocks were filled by drafts"
    engine.scheduler.add(GenerateRequest("same", (100, 101, 102, *[5] * 90), SamplingParams(max_tokens=4)), engine.now)
    engine.run(3)
    first = next(part for plan in engine.plans for part in plan.parts if part.request_id.startswith("same"))
    assert first.start >= 80


def test_a_request_that_waits_for_memory_stops_no_drafts():
    """Until another one ends there are too few blocks for its prompt."""
    engine = Engine(Fixed([5] * 32), num_blocks=60)
    engine.add("a")
    engine.run(30)
    engine.scheduler.add(GenerateRequest("large", tuple(range(900)), SamplingParams(max_tokens=9)), engine.now)
    counts = engine.run(20)
    assert counts[2:] == [7] * 18
    assert not any(part.request_id == "large" for plan in engine.plans for part in plan.parts)


def test_no_step_is_waited_for_where_a_prompt_comes_next():
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.run(30)
    while engine.flights:
        engine.collect()
    engine.scheduler.drain()
    engine.add("b")
    assert not engine.scheduler.wants_results


def test_tokens_that_are_computed_again_are_no_step_with_drafts():
    """They are known, so the step is planned while another is in flight, and its time includes no wait."""
    speculation = OverlappedSpeculation((Fixed([5]),), LIMITS)
    for part in (Part("a", 0, 16, (1, 2, 3), 1, ()), Part("a", 0, 16, (1, 2), 1, ())):
        speculation.record_step([part], part.num_tokens, 1.0, False)
    speculation.wants_results((), False)
    assert not speculation._costs_with_drafts(1).has_measurements
    speculation.record_step([draft_part("a", 0, 16, (1, 2))], 2, 1.0, False)
    speculation.wants_results((), False)
    assert speculation._costs_with_drafts(1).has_measurements


def test_constrained_texts_that_began_in_different_steps_get_drafts():
    """Each waits for its own results, so that they would take turns in flight."""
    engine = Engine(Fixed([5] * 32))
    for name in "ab":
        params, regex = SamplingParams(max_tokens=3000), Constraint(ConstraintKind.REGEX, ".*")
        engine.scheduler.add(GenerateRequest(name, (100, 101, 102), params, constraint=regex), engine.now)
        engine.run(1)
    engine.run(60)
    assert all([len(part.drafts) for part in plan.parts] == [7, 7] for plan in engine.plans[-20:])
