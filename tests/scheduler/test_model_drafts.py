"""When a drafter that is a model drafts, and for which texts."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import pytest

from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.model_drafts import CHUNK, FIRST_TRIALS, READY
from quire.scheduler.overlapped import OverlappedSpeculation
from quire.scheduler.proposals import DraftLimits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.speculation import Speculation
from quire.spec.drafter import NO_DRAFT, Draft, StepTime
from quire.types.request import Constraint, ConstraintKind, GenerateRequest, SamplingParams
from quire.types.step import PartResult, StepPlan, StepResult
from tests.scheduler.test_speculation import Fixed

pytestmark = pytest.mark.pure


class Call(NamedTuple):
    """What the model was asked to do."""

    kind: str  # read or propose
    texts: tuple[str, ...]
    count: int


class TimedModel:
    """Drafts token 5 for every text; a step takes so many seconds, and a little for each token."""

    name, priors, max_drafts = "timed", (0.7,), 8

    def __init__(self, seconds: float, token: int = 5) -> None:
        self.seconds, self.token = seconds, token
        self.num_read: dict[str, int] = {}
        self.calls: list[Call] = []
        self.times: list[StepTime] = []
        self.spent = 0.0

    def _step(self, num_tokens: int) -> None:
        self.times.append(StepTime(num_tokens, self.seconds * (1 + 0.01 * num_tokens)))
        self.spent += self.times[-1].seconds

    def backlogs(self, texts: Any) -> list[int | None]:
        return [len(text.tokens) - self.num_read.get(text.sample_id, 0) for text in texts]

    def read(self, texts: Any, num_tokens: int) -> None:
        self.calls.append(Call("read", tuple(text.sample_id for text in texts), num_tokens))
        for text in texts:
            done = self.num_read.get(text.sample_id, 0)
            end = min(len(text.tokens) - 1, done + num_tokens)
            self.num_read[text.sample_id] = end
            num_tokens -= end - done
            self._step(end - done)

    def propose(self, texts: Any, limit: int) -> list[Draft]:
        self.calls.append(Call("propose", tuple(text.sample_id for text in texts), limit))
        for text in texts:
            self.num_read[text.sample_id] = len(text.tokens)
        for _ in range(limit):
            self._step(len(texts))
        return [Draft((self.token,) * limit) if limit else NO_DRAFT for _ in texts]

    def forget(self, sample_id: str) -> None:
        self.num_read.pop(sample_id, None)

    def take_times(self) -> list[StepTime]:
        times, self.times = self.times, []
        return times

    def proposals(self) -> list[Call]:
        return [call for call in self.calls if call.kind == "propose"]


class Engine:
    """Samples token 5 everywhere. A step takes a second, and little for each further token."""

    def __init__(self, model: TimedModel, *drafters: Any, depth: int = 1) -> None:
        limits = DraftLimits(8, 128, 256)
        kind = Speculation if depth == 1 else OverlappedSpeculation
        self.speculation = kind(drafters, limits, model)
        self.scheduler = Scheduler(KVCache(2000), SchedulerConfig(max_rows=64, max_context=1 << 15), self.speculation)
        self.depth, self.now, self.seconds = depth, 0.0, 0.0
        self.flights: deque[StepPlan] = deque()
        self.model = model

    def add(self, name: str, num_prompt: int = 4, constraint: Constraint | None = None, **sampling: Any) -> None:
        params = SamplingParams(**({"max_tokens": 3000} | sampling))
        prompt = tuple(range(100, 100 + num_prompt))
        self.scheduler.add(GenerateRequest(name, prompt, params, constraint=constraint), self.now)

    def run(self, steps: int, sampled: int = 5) -> list[dict[str, int]]:
        """Return how many drafts each text had in each step."""
        found: list[dict[str, int]] = []
        while len(found) < steps:
            self.now += 1.0
            if self.flights and self.scheduler.wants_results:
                while self.flights:
                    self._collect(sampled)
            plan = self.scheduler.plan(self.now)
            found.append({part.request_id: len(part.drafts) for part in plan.parts})
            if plan.parts:
                self.flights.append(plan)
            if self.flights and (len(self.flights) >= self.depth or not plan.parts):
                self._collect(sampled)
        return found

    def _collect(self, sampled: int) -> None:
        plan = self.flights.popleft()
        parts = []
        for part in plan.parts:
            held = next((place for place, draft in enumerate(part.drafts) if draft != sampled), len(part.drafts))
            parts.append(PartResult((sampled,) * (held + 1) if part.num_logits else ()))
        seconds = 1.0 + 0.02 * plan.num_tokens
        if self.depth > 1:  # the device waits for the plan, and so for the model
            seconds, self.model.spent = seconds + self.model.spent, 0.0
        self.seconds += seconds
        self.scheduler.commit(StepResult(plan.number, tuple(parts), seconds), self.now)
        self.scheduler.check()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cheap_model_that_is_right_drafts_as_many_tokens_as_pay(depth: int) -> None:
    engine = Engine(TimedModel(0.05), depth=depth)
    engine.add("a")
    assert all(each["a"] >= 7 for each in engine.run(60)[-10:])  # 7: tried again after a while


@pytest.mark.parametrize("depth", [1, 2])
def test_constrained_texts_are_drafted_for_though_no_other_ran_before(depth: int) -> None:
    """Each awaits its result: with two steps in flight, too, their plain steps are planned one after the other."""
    engine = Engine(TimedModel(0.05), depth=depth)
    for name in "ab":
        engine.add(name, constraint=Constraint(ConstraintKind.REGEX, ".*"))
    steps = [each for each in engine.run(80) if each]
    assert all(each == {"a": 8, "b": 8} for each in steps[-10:])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_model_that_costs_as_much_as_the_target_is_tried_and_left(depth: int) -> None:
    engine = Engine(TimedModel(1.0), depth=depth)
    engine.add("a")
    engine.run(300)
    assert FIRST_TRIALS <= len(engine.model.proposals()) <= FIRST_TRIALS + 3


def test_a_model_that_is_wrong_is_left_for_that_text() -> None:
    engine = Engine(TimedModel(0.05, token=7))
    engine.add("a")
    engine.run(400)
    proposals = engine.model.proposals()
    assert FIRST_TRIALS <= len(proposals) < 30
    spent = sum(0.05 * call.count for call in proposals)
    assert spent < 0.01 * engine.seconds


def test_a_long_text_is_read_in_chunks_before_it_is_drafted_for() -> None:
    engine = Engine(TimedModel(0.002))
    engine.add("first")
    engine.run(30)
    engine.add("long", num_prompt=3 * CHUNK)
    engine.model.calls.clear()
    counts = engine.run(30)
    reads = [call for call in engine.model.calls if "long" in call.texts and call.kind == "read"]
    assert len(reads) >= 3 and all(call.count == CHUNK for call in reads)
    first = next(place for place, call in enumerate(engine.model.calls) if "long" in call.texts and call.kind != "read")
    assert engine.model.calls.index(reads[-1]) < first
    meanwhile = [each["first"] for each in counts[1:] if not each["long"]]
    assert counts[-1]["long"] > 0 and sum(map(bool, meanwhile)) >= 3, counts


def test_a_text_whose_reading_does_not_pay_is_not_read() -> None:
    engine = Engine(TimedModel(0.3))
    engine.add("first")
    engine.run(30)
    engine.add("long", num_prompt=CHUNK * 40)
    engine.model.calls.clear()
    engine.run(20)
    assert not [call for call in engine.model.calls if "long" in call.texts]


def test_drafts_that_cost_nothing_come_first() -> None:
    engine = Engine(TimedModel(0.05), Fixed([5] * 32))
    engine.add("a")
    engine.run(60)
    engine.model.calls.clear()
    engine.run(20)
    assert engine.speculation.num_accepted["fixed"] > 0
    assert len(engine.model.proposals()) < 5


def test_all_texts_are_drafted_for_in_one_call() -> None:
    engine = Engine(TimedModel(0.05))
    for name in "abcd":
        engine.add(name)
    engine.run(40)
    assert set(engine.model.proposals()[-1].texts) == set("abcd")


def test_a_request_without_drafts_is_not_asked_for() -> None:
    engine = Engine(TimedModel(0.05))
    engine.add("off", speculate="off")
    engine.run(30)
    assert not engine.model.calls


def test_what_the_model_keeps_of_a_text_ends_with_it() -> None:
    engine = Engine(TimedModel(0.05))
    engine.add("a", max_tokens=20)
    engine.run(30)
    assert engine.model.calls and not engine.model.num_read


def test_a_backlog_of_a_few_tokens_is_read_with_the_draft() -> None:
    engine = Engine(TimedModel(0.05))
    engine.add("a", num_prompt=READY - 8)
    engine.run(20)
    assert all(call.kind == "propose" for call in engine.model.calls)
