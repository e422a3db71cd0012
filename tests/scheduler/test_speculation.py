"""Which texts get drafts, and how many."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.acceptance import Acceptance, RequestDrafts
from quire.scheduler.plain_step import PlainStep
from quire.scheduler.proposals import DraftLimits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.speculation import (
    MAX_ROWS,
    MOST_IN_ROW,
    NO_LIMITS,
    SUSPENDED_TOKENS,
    DraftCandidate,
    Speculation,
)
from quire.scheduler.step_costs import size_of_step
from quire.spec.drafter import NO_DRAFT, Draft
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.step import PartResult, StepPlan, StepResult

pytestmark = pytest.mark.pure


class Fixed:
    """Proposes the same tokens for every text."""

    name, priors = "fixed", (0.5,)

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.forgotten: list[str] = []

    def propose(self, texts: Any, limit: int) -> list[Draft]:
        return [Draft(self.tokens[:limit]) if self.tokens else NO_DRAFT for _ in texts]

    def forget(self, sample_id: str) -> None:
        self.forgotten.append(sample_id)


def step_seconds(num_tokens: float) -> float:
    """A device that is bound by memory up to 8 tokens, and by arithmetic beyond."""
    return 1.0 + 0.02 * num_tokens + max(0, num_tokens - 8) * 1.0


class Engine:
    """Samples token 5 everywhere, so that drafts of it are accepted."""

    def __init__(
        self,
        drafter: Fixed,
        num_blocks: int = 200,
        seconds: Any = step_seconds,
        limits: DraftLimits = NO_LIMITS,
        num_states: int = 0,
        **config: Any,
    ) -> None:
        self.speculation = Speculation((drafter,), limits)
        self.cache = KVCache(num_blocks, num_states=num_states)
        self.scheduler = Scheduler(self.cache, SchedulerConfig(max_rows=128, **config), self.speculation)
        self.seconds, self.now, self.outcomes = seconds, 0.0, []
        self.plans: list[StepPlan] = []

    def add(self, name: str, num_prompt: int = 4, first: int = 100, **sampling: Any) -> None:
        params = SamplingParams(**({"max_tokens": 3000} | sampling))
        self.scheduler.add(GenerateRequest(name, tuple(range(first, first + num_prompt)), params), self.now)

    def step(self, **sampled: int) -> StepPlan:
        self.now += 1.0
        plan = self.scheduler.plan(self.now)
        if not plan.parts:
            return plan
        parts = []
        for part in plan.parts:
            tokens = []
            for draft in (*part.drafts, None):
                tokens.append(sampled.get(part.request_id, 5))
                if draft != tokens[-1]:
                    break
            parts.append(PartResult(tuple(tokens) if part.num_logits else ()))
        seconds = self.seconds(size_of_step(plan.parts, plan.num_tokens)[0])
        self.scheduler.commit(StepResult(plan.number, tuple(parts), seconds), self.now)
        self.outcomes += self.scheduler.drain()
        self.scheduler.check()
        self.plans.append(plan)
        return plan

    def run(self, steps: int, **sampled: int) -> list[int]:
        """Return how many drafts each step had."""
        return [sum(len(part.drafts) for part in self.step(**sampled).parts) for _ in range(steps)]


def test_drafts_that_hold_grow_to_what_costs_little():
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    counts = engine.run(60)
    assert counts[:2] == [0, 0]  # nothing is measured before the first decoding step
    assert counts[-1] in (6, 7)  # 8 tokens: beyond that each costs as much as it yields
    assert engine.speculation.num_accepted["fixed"] == engine.speculation.num_drafted["fixed"] > 100


def test_drafts_that_fail_are_tried_ever_more_rarely():
    engine = Engine(Fixed([7] * 32), seconds=float)
    engine.add("a")
    counts = engine.run(300)
    assert sum(1 for count in counts if count) < 10
    assert sum(counts[100:]) <= 2


def test_tries_beyond_a_tile_of_tokens_are_charged_for_the_whole_tile():
    """The first token beyond 16 costs as much as 16 more: 40 % of a step, so one step in 133 may have one."""
    engine = Engine(Fixed([7]), 2000, seconds=lambda num_tokens: 10.0 if num_tokens <= 16 else 14.0)
    for number in range(16):
        engine.add(f"t{number}", first=100 * (number + 1))
    counts = engine.run(1500)[200:]
    tried = [count for count in counts if count]
    assert 3 < len(tried) < 0.01 * len(counts), tried


def test_a_text_learns_for_itself():
    engine = Engine(Fixed([5] * 32), seconds=lambda count: 1.0 + 0.2 * count)
    engine.add("good")
    engine.add("bad")
    engine.run(40, bad=7)
    last = {part.request_id: len(part.drafts) for part in engine.step(bad=7).parts}
    assert last["good"] > 0 == last["bad"]


def test_a_step_without_a_gain_is_the_plain_one():
    engine = Engine(Fixed([5] * 32), seconds=float)
    engine.add("a")
    engine.run(60)
    plain = [plan for plan in engine.plans[-40:] if plan.parts[0].tokens is None]
    assert len(plain) >= 38


@pytest.mark.parametrize("num_forced, pays", [(0, True), (2000, False)])
def test_tokens_that_a_grammar_would_force_are_no_gain(num_forced: int, pays: bool):
    engine = Engine(Fixed([5] * 4), seconds=lambda num_tokens: 0.7 + 0.3 * num_tokens)  # a second token costs 30 %
    engine.add("a")
    engine.run(30)
    if num_forced:
        engine.scheduler.force("a", 0, (5,) * num_forced, engine.now)
    num_drafts = sum(engine.run(60))
    assert num_drafts > 60 if pays else num_drafts < 10, num_drafts


def test_forced_tokens_leave_no_room_for_free_drafts():
    """Eight tokens are almost free; forced ones take that room, so that drafts beside them cost what they yield."""
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.add("forced")
    engine.run(60)
    assert len(engine.step().parts[0].drafts) >= 2
    for _ in range(10):
        engine.scheduler.force("forced", 0, (5,) * 12, engine.now)
        plan = engine.step()
        assert [part.num_tokens for part in plan.parts if part.request_id == "forced"] == [13]
        assert [len(part.drafts) for part in plan.parts if part.request_id == "a"] == [0]


def test_drafts_beside_a_prompt_cost_what_they_add_to_the_whole_step():
    engine = Engine(Fixed([5] * 32))
    engine.add("long", num_prompt=400)
    engine.add("a")
    engine.run(60)
    assert sum(engine.run(4)) > 8
    engine.add("other", num_prompt=300, first=1000)
    plan = engine.step()
    assert max(part.num_tokens for part in plan.parts) > 50
    assert sum(len(part.drafts) for part in plan.parts) == 0


def test_drafts_beside_other_tokens_never_seem_to_take_no_time():
    """Times are measured, so a larger step may seem to be faster than a smaller one."""
    speculation = Speculation((Fixed([5]),))
    for num_tokens, seconds in ((1, 5.0), (16, 34.0), (40, 50.0), (60, 42.0)):
        speculation._costs.record(num_tokens, seconds)
    step = PlainStep(1, num_others=68)
    for num_drafts in range(1, 8):
        assert speculation._drafted_seconds(step, num_drafts) >= speculation._costs.seconds(1)


def test_the_tokens_beside_drafts_count_towards_the_limit_of_a_step():
    speculation = Speculation((Fixed([5]),), DraftLimits(step_tokens=20))
    for num_tokens in (1, 40):
        speculation._costs.record(num_tokens, 1.0)
    state: Any = None
    candidate = DraftCandidate(state, RequestDrafts(), ("fixed", 0), [5] * 16, [0.9] * 16)
    assert speculation._best_counts([candidate], PlainStep(1)) == [16]
    assert speculation._best_counts([candidate], PlainStep(1, num_others=9)) == [10]
    assert speculation._best_counts([candidate], PlainStep(1, num_others=30)) == [0]


def test_no_more_of_a_prompt_counts_than_the_step_takes():
    engine = Engine(Fixed([5] * 32))
    engine.add("long", num_prompt=3000)
    engine.step()
    assert PlainStep.of(engine.scheduler._running.snapshot(), has_newcomers=False, budget=512).num_tokens == 512


def test_drafts_of_a_text_are_suspended_if_its_last_ones_were_dropped():
    speculation = Speculation((Fixed([5]),), NO_LIMITS)
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.run(20)
    (state,) = engine.scheduler._running.snapshot()
    speculation._pending[state.sample_id] = ("fixed", 0)
    speculation._suspend_dropped([state])
    assert not speculation._not_suspended([state]) and not speculation._pending
    state.tokens.extend([5] * SUSPENDED_TOKENS)
    assert speculation._not_suspended([state]) == [state]


def test_a_draft_that_was_neither_verified_nor_replaced_teaches_nothing_later():
    """A model's draft stood in for it, but was not verified: a later result says nothing about its tokens."""
    speculation = Speculation((Fixed([5]),), NO_LIMITS)
    engine = Engine(Fixed([5] * 32))
    engine.add("a")
    engine.run(20)
    (state,) = engine.scheduler._running.snapshot()
    request = RequestDrafts()
    speculation._other_drafts["a"] = DraftCandidate(state, request, ("fixed", 0), (7, 7), [0.5, 0.5])
    speculation.suggest([state])
    speculation._pending["a"] = ("fixed", 0)
    speculation.record("a", 1, (5, 5), 2)
    assert request.shares[("fixed", 0)].first.trials == 0


def test_texts_with_states_get_fewer_drafts_because_accepted_tokens_may_be_computed_again():
    drafted = []
    for has_states in (False, True):
        limits = DraftLimits(has_states=has_states)
        drafter, rng = Fixed([5] * 4), random.Random(0)
        engine = Engine(drafter, seconds=lambda count: 1.0 + 0.2 * count, limits=limits)
        engine.add("a")
        for _ in range(400):
            engine.step()
            drafter.tokens = [5, 5, *(rng.choice([5, 7]),) * 2]
        drafted.append(sum(len(part.drafts) for plan in engine.plans for part in plan.parts) / len(engine.plans))
    assert drafted[1] < 2.5 < drafted[0], drafted  # half of the drafts are wrong from their third token on


class Recorder(Fixed):
    """Records how many tokens each text lacked when drafts for it were asked for."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__(tokens)
        self.lacking: list[int] = []

    def propose(self, texts: Any, limit: int) -> list[Draft]:
        self.lacking += [text.max_total - len(text.tokens) for text in texts]
        return super().propose(texts, limit)


def test_no_drafter_is_called_for_the_last_token_of_a_text():
    drafter = Recorder([7])
    engine = Engine(drafter)
    for max_tokens in range(10, 18):
        engine.add(str(max_tokens), max_tokens=max_tokens)
        engine.run(20)
    assert len(engine.outcomes) == sum(range(10, 18)) and min(drafter.lacking) == 2


def test_the_text_is_that_without_drafts():
    with_drafts, without = Engine(Fixed([5] * 32)), Engine(Fixed([]))
    for engine in (with_drafts, without):
        engine.add("a", max_tokens=50)
        engine.run(60)
    texts = [[token for outcome in engine.outcomes for token in outcome.tokens] for engine in (with_drafts, without)]
    assert texts[0] == texts[1] == [5] * 50
    assert len([plan for plan in with_drafts.plans if plan.parts]) < 30


def test_forced_tokens_and_drafts_share_a_step():
    engine = Engine(Fixed([5] * 32), seconds=lambda num_tokens: 1.0 + 0.01 * num_tokens)
    engine.add("a")
    engine.run(20)
    engine.scheduler.force("a", 0, (5, 5, 5, 5), engine.now)
    (part,) = engine.step().parts
    assert part.tokens == (5,) * part.num_tokens and part.num_tokens == 5 + len(part.drafts) and part.drafts
    assert part.num_tokens <= 1 + NO_LIMITS.row_drafts


def test_forced_tokens_that_do_not_all_fit_get_no_drafts():
    engine = Engine(Fixed([5] * 32), seconds=lambda num_tokens: 1.0 + 0.01 * num_tokens, max_step_tokens=16)
    engine.add("a")
    assert engine.run(20)[-1]
    engine.scheduler.force("a", 0, (5,) * 20, engine.now)
    assert [(part.num_tokens, part.drafts) for _ in range(2) for part in engine.step().parts] == [(16, ()), (5, ())]


def test_a_state_has_no_drafts_after_forced_tokens():
    """After a wrong draft it would go back to before the forced tokens."""
    engine = Engine(Fixed([5] * 32), limits=DraftLimits(has_states=True), num_states=4)
    engine.add("a")
    assert any(engine.run(20))
    engine.scheduler.force("a", 0, (5, 5), engine.now)
    assert engine.run(1) == [0]


def test_after_many_steps_with_drafts_one_has_none():
    """So the time of a step without drafts stays known: here it falls while every step has drafts, which then lose."""
    rng, drafter = random.Random(0), Fixed([5])
    plain = [3.0]
    engine = Engine(drafter, 4000, seconds=lambda num_tokens: plain[0] if num_tokens < 2 else 3.5)
    engine.add("a", max_tokens=20000)
    assert 0 in engine.run(2 * MOST_IN_ROW)[-MOST_IN_ROW:]
    plain[0] = 1.5
    counts = []
    for _ in range(40 * MOST_IN_ROW):
        drafter.tokens = [rng.choice([5, 7])]
        counts += engine.run(1)
    assert sum(counts[-MOST_IN_ROW:]) < 0.1 * MOST_IN_ROW


def test_a_cell_that_was_measured_too_slow_is_tried_again():
    """Other work made the first steps with drafts slow, and the text of that time had no good drafts."""
    slow = [10.0]
    engine = Engine(Fixed([7]), 4000, seconds=lambda num_tokens: 1.0 if num_tokens < 2 else slow[0])
    engine.add("a", max_tokens=500)
    engine.run(550)
    assert engine.speculation.num_drafted["fixed"]
    engine.speculation._drafters[0].tokens, slow[0] = [5], 1.2
    for number in range(40):
        engine.add(f"b{number}", first=200 + number, max_tokens=150)
        engine.run(150)
    assert engine.speculation.num_accepted["fixed"] > 500


def test_accepted_tokens_behind_a_stop_are_not_counted():
    engine = Engine(Fixed([5] * 6), seconds=lambda num_tokens: 1.0 + 0.01 * num_tokens)
    engine.add("a", stop_token_ids=[5], min_tokens=20, ignore_eos=True)
    engine.run(40)
    (end,) = [outcome for outcome in engine.outcomes if outcome.finish]
    num_output = sum(len(outcome.tokens) for outcome in engine.outcomes)
    assert num_output == 21 and sum(draft.num_accepted for draft in end.drafts) <= len(end.tokens)
    num_accepted = sum(draft.num_accepted for outcome in engine.outcomes for draft in outcome.drafts)
    assert engine.speculation.num_accepted["fixed"] == num_accepted < num_output


def test_a_request_may_switch_it_off():
    engine = Engine(Fixed([5] * 32))
    engine.add("a", speculate="off")
    assert sum(engine.run(20)) == 0


def test_many_rows_get_no_drafts():
    engine = Engine(Fixed([5] * 32))
    for index in range(MAX_ROWS + 1):
        engine.add(f"r{index}")
    assert sum(engine.run(6)) == 0


def test_no_request_is_preempted_for_drafts():
    engine = Engine(Fixed([5] * 32), num_blocks=6)  # 96 tokens
    for name in "abc":
        engine.add(name, max_tokens=20)
    engine.run(30)
    assert engine.scheduler.stats().num_preemptions == 0


def test_what_is_kept_of_a_text_ends_with_it():
    drafter = Fixed([5] * 4)
    engine = Engine(drafter)
    engine.add("a", max_tokens=12)
    engine.run(15)
    assert drafter.forgotten == ["a"] and not engine.speculation._requests and not engine.speculation._pending


def test_acceptance_starts_from_the_prior_then_all_requests_then_the_request():
    acceptance = Acceptance({("x", 0): 0.5})
    assert acceptance.probabilities(RequestDrafts(), ("x", 0)) == [0.5, 0.75, 0.75, 0.75]
    first = RequestDrafts()
    for _ in range(50):
        acceptance.record(first, ("x", 0), 4, 4)
    assert min(acceptance.probabilities(first, ("x", 0))) > 0.9
    assert 0.8 < acceptance.probabilities(RequestDrafts(), ("x", 0))[0] < 1.0
    for _ in range(20):
        acceptance.record(first, ("x", 0), 4, 0)
    chance, *later = acceptance.probabilities(first, ("x", 0))
    assert chance < 0.3 and min(later) > 0.9  # tokens after a wrong one were not judged


def test_a_place_in_a_draft_has_a_probability_of_its_own():
    """The third token is always wrong, as that of a head which was trained for two."""
    acceptance, request = Acceptance({("x", 0): 0.5}), RequestDrafts()
    for _ in range(50):
        acceptance.record(request, ("x", 0), 8, 2)
    for each in (request, RequestDrafts()):
        first, second, third, later = acceptance.probabilities(each, ("x", 0))
        assert min(first, second) > 0.85 and third < 0.15 and 0.3 < later < 0.8  # of later ones nothing is known


def test_what_is_learned_of_one_place_applies_to_others_at_once():
    acceptance, request = Acceptance({("x", 0): 0.3}), RequestDrafts()
    before = acceptance.probabilities(request, ("x", 0))
    acceptance.record(request, ("x", 0), 2, 2)
    after = acceptance.probabilities(request, ("x", 0))
    assert all(new > old for old, new in zip(before, after, strict=True))


def test_the_tree_continues_a_text_as_another_request_was_continued():
    cache = KVCache(50, 4)
    tokens = array("I", range(1, 15))
    request = GenerateRequest("a", tuple(tokens[:5]))
    lease = cache.lease(cache.match(tokens[:5], request.cache, 4), tokens[:5], request.cache, 0.0)
    assert cache.extend(lease, 14, 0.0)
    cache.seal(lease, tokens, 14, 0.0)
    cache.release(lease, tokens, 14, 0.0)
    other = cache.lease(cache.match(tokens[:6], request.cache, 5), tokens[:6], request.cache, 1.0)
    assert list(cache.continuation(other, tokens[:6], 4)) == [7, 8, 9, 10]
    assert list(cache.continuation(other, tokens[:6], 100)) == list(range(7, 15))
    assert list(cache.continuation(other, array("I", [1, 2, 3, 4, 5, 60]), 4)) == []
