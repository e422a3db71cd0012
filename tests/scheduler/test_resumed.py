"""Resumed requests, whose engine died. Their earlier output is computed like a prompt and not reported again."""

from __future__ import annotations

import pytest

from quire.config import SchedulerConfig
from quire.types.errors import ContextTooLong, InvalidRequest, Overloaded
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.scheduler.simulator import Simulator, expected_output

pytestmark = pytest.mark.pure

PROMPT = tuple(range(100, 150))
CONFIG = SchedulerConfig(max_rows=8, max_step_tokens=64, max_scored_tokens=10, max_context=128)


def resumed(name: str, *outputs: tuple[int, ...] | None, **parameters: int) -> GenerateRequest:
    sampling = SamplingParams(**{"max_tokens": 12, "n": len(outputs), **parameters})  # type: ignore[arg-type]
    return GenerateRequest(name, PROMPT, sampling, resumed=outputs)


def test_a_resumed_request_continues_its_output_and_finished_samples_stay_finished() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.checks = True
    whole = [expected_output(PROMPT, 12, sample) for sample in range(3)]
    simulator.run([(0.0, resumed("a", tuple(whole[0][:5]), None, ()))])
    assert set(simulator.records) == {("a", 0), ("a", 2)}
    assert simulator.records["a", 0].tokens == whole[0][5:] and simulator.records["a", 2].tokens == whole[2]
    assert all(record.finish is FinishReason.LENGTH for record in simulator.records.values())


def test_its_earlier_output_is_computed_together_with_its_prompt() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, resumed("a", tuple(expected_output(PROMPT, 9))))])
    assert [len(part.tokens or (0,)) for plan in simulator.plans for part in plan.parts] == [59, 1, 1]


def test_its_hits_are_reported_only_if_it_had_no_output_before() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, GenerateRequest("before", PROMPT, SamplingParams(max_tokens=12)))])
    simulator.run(
        [
            (simulator.now, resumed("with_output", tuple(expected_output(PROMPT, 9)))),
            (simulator.now, resumed("without_output", ())),
        ]
    )
    assert simulator.records["with_output", 0].num_hit == 0
    assert simulator.records["without_output", 0].num_hit == len(PROMPT) - 1
    assert simulator.plans[-3].num_tokens < len(PROMPT), "it used the hits all the same"


def test_a_prompt_that_was_scored_is_not_scored_again() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, resumed("with_output", tuple(expected_output(PROMPT, 3)), prompt_logprobs=0))])
    assert not any(part.scores_prompt for plan in simulator.plans for part in plan.parts)
    simulator.run([(simulator.now, resumed("without_output", (), prompt_logprobs=0))])
    assert any(part.scores_prompt for plan in simulator.plans for part in plan.parts)


def test_it_is_not_refused_when_the_queue_is_full() -> None:
    simulator = Simulator(
        SchedulerConfig(max_rows=1, max_step_tokens=64, max_waiting=1, max_context=128), num_blocks=64
    )
    assert simulator.submit(GenerateRequest("a", PROMPT)) and not simulator.submit(GenerateRequest("b", PROMPT))
    assert isinstance(simulator.refused["b"], Overloaded)
    assert simulator.submit(resumed("c", ())) and simulator.submit(resumed("d", (1, 2), ()))
    simulator.run()


def test_it_must_fit_with_its_earlier_output() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    assert not simulator.submit(resumed("a", (), tuple(range(78)), max_tokens=100))
    assert isinstance(simulator.refused["a"], ContextTooLong) and simulator.refused["a"].num_prompt == 128


@pytest.mark.parametrize("outputs", [((),), ((), (), ()), (None, None)])
def test_it_needs_an_output_for_each_sample_and_one_that_is_unfinished(
    outputs: tuple[tuple[int, ...] | None, ...],
) -> None:
    with pytest.raises(InvalidRequest, match="for each sample"):
        GenerateRequest("a", PROMPT, SamplingParams(n=2), resumed=outputs)
