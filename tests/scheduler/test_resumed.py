"""Requests that come with output: of an engine that died. They are computed like prompts, and never told again."""

from __future__ import annotations

import pytest

from quire.config import SchedulerConfig
from quire.types.errors import ContextTooLong, InvalidRequest, Overloaded
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.scheduler.simulator import Simulator, expected_output

pytestmark = pytest.mark.pure

PROMPT = tuple(range(100, 150))
CONFIG = SchedulerConfig(max_rows=8, max_step_tokens=64, max_scored_tokens=10, max_context=128)


def resumed(name: str, *outputs: tuple[int, ...] | None, **sampling: int) -> GenerateRequest:
    how = SamplingParams(**{"max_tokens": 12, "n": len(outputs), **sampling})  # type: ignore[arg-type]
    return GenerateRequest(name, PROMPT, how, resumed=outputs)


def test_it_goes_on_where_it_was_and_samples_that_are_over_stay_over() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.checks = True
    whole = [expected_output(PROMPT, 12, sample) for sample in range(3)]
    simulator.run([(0.0, resumed("a", tuple(whole[0][:5]), None, ()))])
    assert set(simulator.stories) == {("a", 0), ("a", 2)}
    assert simulator.stories["a", 0].tokens == whole[0][5:] and simulator.stories["a", 2].tokens == whole[2]
    assert all(story.finish is FinishReason.LENGTH for story in simulator.stories.values())


def test_what_it_knows_is_computed_in_one_go_with_its_prompt() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, resumed("a", tuple(expected_output(PROMPT, 9))))])
    assert [len(part.tokens or (0,)) for plan in simulator.plans for part in plan.parts] == [59, 1, 1]


def test_its_hits_were_told_before_unless_it_had_said_nothing() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, GenerateRequest("before", PROMPT, SamplingParams(max_tokens=12)))])
    simulator.run(
        [(simulator.now, resumed("spoke", tuple(expected_output(PROMPT, 9)))), (simulator.now, resumed("silent", ()))]
    )
    assert simulator.stories["spoke", 0].num_hit == 0
    assert simulator.stories["silent", 0].num_hit == len(PROMPT) - 1
    assert simulator.plans[-3].num_tokens < len(PROMPT), "it used them all the same"


def test_a_prompt_that_was_scored_is_not_scored_again() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, resumed("spoke", tuple(expected_output(PROMPT, 3)), prompt_logprobs=0))])
    assert not any(part.scores_prompt for plan in simulator.plans for part in plan.parts)
    simulator.run([(simulator.now, resumed("silent", (), prompt_logprobs=0))])
    assert any(part.scores_prompt for plan in simulator.plans for part in plan.parts)


def test_it_is_not_refused_because_others_wait() -> None:
    simulator = Simulator(
        SchedulerConfig(max_rows=1, max_step_tokens=64, max_waiting=1, max_context=128), num_blocks=64
    )
    assert simulator.submit(GenerateRequest("a", PROMPT)) and not simulator.submit(GenerateRequest("b", PROMPT))
    assert isinstance(simulator.refused["b"], Overloaded)
    assert simulator.submit(resumed("c", ())) and simulator.submit(resumed("d", (1, 2), ()))
    simulator.run()


def test_it_must_fit_as_it_is_now() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    assert not simulator.submit(resumed("a", (), tuple(range(78)), max_tokens=100))
    assert isinstance(simulator.refused["a"], ContextTooLong) and simulator.refused["a"].num_prompt == 128


@pytest.mark.parametrize("outputs", [((),), ((), (), ()), (None, None)])
def test_it_has_an_output_for_each_sample_and_one_that_goes_on(outputs: tuple[tuple[int, ...] | None, ...]) -> None:
    with pytest.raises(InvalidRequest, match="for each sample"):
        GenerateRequest("a", PROMPT, SamplingParams(n=2), resumed=outputs)
