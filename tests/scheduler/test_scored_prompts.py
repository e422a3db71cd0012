"""Prompt logprobs: the prompt is computed even if cached, in chunks limited by the logits of a step."""

from __future__ import annotations

import pytest

from quire.config import SchedulerConfig
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.scheduler.simulator import Simulator

pytestmark = pytest.mark.pure

CONFIG = SchedulerConfig(max_rows=8, max_step_tokens=64, max_scored_tokens=10, max_context=512)
PROMPT = tuple(range(100, 150))


def scored(name: str, n: int = 1) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, SamplingParams(max_tokens=5, prompt_logprobs=0, n=n))


def test_a_scored_prompt_is_computed_from_its_start_even_if_cached() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.run([(0.0, GenerateRequest("before", PROMPT, SamplingParams(max_tokens=5)))])
    simulator.plans.clear()
    simulator.run([(simulator.now, scored("a"))])
    parts = [part for plan in simulator.plans for part in plan.parts if part.scores_prompt]
    assert [part.start for part in parts] == [0, 10, 20, 30, 40] and all(len(part.tokens or ()) == 10 for part in parts)
    assert simulator.records["a", 0].tokens == simulator.records["before", 0].tokens
    assert simulator.records["a", 0].num_hit == 0


def test_scored_prompts_share_the_logits_of_a_step_and_all_finish() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.checks = True
    others = [GenerateRequest(f"o{n}", tuple(range(n, n + 40)), SamplingParams(max_tokens=9)) for n in range(3)]
    simulator.run([(0.0, request) for request in (scored("a"), scored("b"), scored("c", n=2), *others)])
    for plan in simulator.plans:
        assert sum(len(part.tokens or ()) for part in plan.parts if part.scores_prompt) <= 10
    assert all(record.finish is FinishReason.LENGTH for record in simulator.records.values())
    assert simulator.records["c", 1].num_hit == 49  # one sample scores the prompt for all


def test_one_sample_of_a_request_can_be_ended() -> None:
    simulator = Simulator(CONFIG, num_blocks=64)
    simulator.submit(GenerateRequest("a", PROMPT, SamplingParams(max_tokens=9, n=3)))
    for _ in range(4):
        simulator.step()
    assert simulator.scheduler.cancel("a", simulator.now, FinishReason.STOP, sample=1)
    assert not simulator.scheduler.cancel("a", simulator.now, FinishReason.STOP, sample=1)
    simulator.run()
    assert [simulator.records["a", n].finish for n in range(3)] == ["length", "stop", "length"]
