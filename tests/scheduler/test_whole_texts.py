"""The scheduler of encoders: whole texts, as many in a step as fit, and every request ends once."""

from __future__ import annotations

import pytest

from quire.config import SchedulerConfig
from quire.scheduler.whole_texts import WholeTextScheduler
from quire.types.errors import DeadlineExceeded, DuplicateRequest, Overloaded, TextTooLong
from quire.types.kinds import RequestKind
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import PartResult, StepPlan, StepResult

pytestmark = pytest.mark.pure
CONFIG = {"max_rows": 3, "max_step_tokens": 64, "max_scored_tokens": 10, "max_context": 40, "max_waiting": 8}


def text(name: str, length: int, **more: object) -> GenerateRequest:
    sampling = SamplingParams(temperature=0, max_tokens=1)
    return GenerateRequest(name, tuple(range(length)), sampling, kind=RequestKind.EMBED, **more)  # type: ignore[arg-type]


def scheduler(*requests: GenerateRequest, **settings: object) -> WholeTextScheduler:
    made = WholeTextScheduler(SchedulerConfig(**{**CONFIG, **settings}))  # type: ignore[arg-type]
    for request in requests:
        made.add(request, 0.0)
    made.check()
    return made


def names(plan: StepPlan) -> list[str]:
    return [part.request_id for part in plan.parts]


def commit(made: WholeTextScheduler, plan: StepPlan) -> None:
    parts = tuple(PartResult(vector=part.request_id.encode()) for part in plan.parts)
    made.commit(StepResult(plan.number, parts, 0.01), 1.0)
    made.check()


def test_a_step_has_as_many_whole_texts_as_fit_by_tokens_and_rows():
    made = scheduler(text("a", 40), text("b", 20), text("c", 10), *(text(f"d{n}", 1) for n in range(4)))
    plans = [made.plan(0.0) for _ in range(4)]
    assert [names(plan) for plan in plans] == [["a", "b"], ["c", "d0", "d1"], ["d2", "d3"], []]
    assert all(not part.start for plan in plans for part in plan.parts)
    for plan in plans[:3]:
        commit(made, plan)
    outcomes = made.drain()
    assert [each.vector.decode() for each in outcomes] == ["a", "b", "c", "d0", "d1", "d2", "d3"] and made.is_idle


def test_a_cancelled_text_ends_at_once_and_its_result_is_dropped():
    made = scheduler(text("a", 4), text("b", 4))
    plan = made.plan(0.0)
    made.add(text("c", 4), 0.0)
    assert made.cancel("a", 0.5) and made.cancel("c", 0.5) and not made.cancel("nobody", 0.5)
    commit(made, plan)
    assert [each.finish for each in made.drain()] == [FinishReason.CANCELLED, FinishReason.CANCELLED, FinishReason.STOP]
    assert made.is_idle and not names(made.plan(2.0))


def test_a_late_text_fails_before_it_is_computed():
    made = scheduler(text("a", 4, deadline=1.0), text("b", 4))
    assert names(made.plan(2.0)) == ["b"]
    assert isinstance(made.drain()[0].error, DeadlineExceeded)


def test_what_cannot_be_served_is_refused_and_not_kept():
    made = scheduler(*(text(str(number), 4) for number in range(8)))
    for request, error in (
        (text("1", 4), DuplicateRequest),
        (text("long", 41), TextTooLong),
        (text("x", 4), Overloaded),
    ):
        with pytest.raises(error):
            made.add(request, 0.0)
    made.check()
    made.cancel_all(0.0)
    assert made.is_idle and len(made.drain()) == 8
