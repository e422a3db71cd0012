"""Scheduler, cache, runner and sampler together, over the references, against transformers on the same weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.engine.messages import Cancel, Cancelled
from quire.types.request import CacheKey, FinishReason, SamplingParams
from tests.engine.driver import GREEDY_64, Driver, expected
from tests.models.toys import some_tokens

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("each_device")]

CASES = ("llama", "mistral-window", "qwen2", "qwen3")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_step_tokens", [1, 7, 64])
def test_greedy_tokens_are_those_of_transformers_for_any_chunk(case: str, max_step_tokens: int) -> None:
    driver = Driver(case, max_step_tokens=max_step_tokens, max_rows=1)
    prompt = some_tokens(70)
    driver.submit("a", prompt)
    assert driver.run().tokens("a") == expected(case, prompt)
    assert max(tokens for tokens, _, _ in driver.program.batches) == max_step_tokens


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_are_those_of_transformers_in_a_mixed_batch(case: str) -> None:
    """Ten prompts of all sizes that arrive while others run, with few tokens in a step."""
    driver = Driver(case, max_step_tokens=40, num_blocks=120)
    prompts = {f"prompt {n}": some_tokens(n) for n in (1, 2, 5, 15, 16, 17, 33, 48, 61, 90)}
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
        driver.step()
    driver.run()
    for name, prompt in prompts.items():
        assert driver.tokens(name) == expected(case, prompt), name
    assert max(rows for _, rows, _ in driver.program.batches) >= 8


@pytest.mark.parametrize("case", ["llama", "mistral-window", "qwen3"])
def test_hits_of_whole_and_partial_blocks_do_not_change_the_output(case: str) -> None:
    driver = Driver(case)
    first = some_tokens(45)
    driver.submit("first", first)
    driver.run()
    for name, prompt, num_hit in (
        ("the same", first, 44),
        ("whole blocks", [*first[:32], *some_tokens(9)], 32),
        ("within a block", [*first[:37], *some_tokens(11)], 37),
        ("the next turn", [*first, *driver.tokens("first"), *some_tokens(6)], 45 + 63),
        ("nothing", some_tokens(46), 0),
    ):
        driver.submit(name, prompt)
        assert driver.run().tokens(name) == expected(case, prompt), name
        assert driver.records[name, 0].num_hit == num_hit, name


@pytest.mark.parametrize("case", CASES)
def test_preemption_and_resume_do_not_change_the_output(case: str) -> None:
    """Six requests that grow to 7 blocks each, and 16 blocks for all of them."""
    driver = Driver(case, num_blocks=16, max_step_tokens=50)
    prompts = {str(n): some_tokens(30 + n) for n in range(6)}
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
    driver.run()
    for name, prompt in prompts.items():
        assert driver.tokens(name) == expected(case, prompt), name
    assert driver.core.counters().num_preemptions >= 2


def test_samples_of_one_request_share_its_prompt_and_then_differ() -> None:
    driver = Driver("llama")
    prompt = some_tokens(37)
    driver.submit("greedy", prompt, replace(GREEDY_64, n=3))
    driver.submit("sampled", prompt, SamplingParams(n=3, seed=5, max_tokens=30))
    driver.run()
    assert all(driver.tokens("greedy", sample) == expected("llama", prompt) for sample in range(3))
    assert len({tuple(driver.tokens("sampled", sample)) for sample in range(3)}) == 3
    assert driver.records["greedy", 1].num_hit == 36


def test_a_cancel_is_acknowledged_and_affects_no_other_request() -> None:
    driver = Driver("llama")
    prompts = {name: some_tokens(20 + len(name)) for name in ("a", "bb", "ccc")}
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
    for _ in range(10):
        driver.step()
    driver.handle(Cancel("bb"))
    driver.handle(Cancel("nobody"))
    driver.run()
    assert driver.cancels() == [Cancelled("bb", True), Cancelled("nobody", False)]
    assert driver.records["bb", 0].finish is FinishReason.CANCELLED
    assert driver.tokens("bb") == expected("llama", prompts["bb"])[: len(driver.tokens("bb"))]
    assert driver.tokens("a") == expected("llama", prompts["a"])
    assert driver.tokens("ccc") == expected("llama", prompts["ccc"])
    assert driver.core.counters().num_cancelled == 1


def test_one_sample_can_be_ended_alone() -> None:
    driver = Driver("llama")
    driver.submit("a", some_tokens(20), replace(GREEDY_64, n=3))
    while not driver.tokens("a", 2):
        driver.step()
    driver.handle(Cancel("a", FinishReason.STOP, sample=1))
    driver.run()
    assert [driver.records["a", sample].finish for sample in range(3)] == ["length", "stop", "length"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("case", ["llama", "qwen3"])
def test_logprobs_are_those_of_transformers(case: str) -> None:
    driver, prompt = Driver(case), some_tokens(21)
    driver.submit("a", prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=20, logprobs=4))
    told = driver.run().records["a", 0]
    exact = log_softmax(driver.toy.expected_logits([*prompt, *told.tokens]))
    for index, each in enumerate(told.logprobs):
        row = exact[len(prompt) - 1 + index]
        assert each.token == told.tokens[index] and each.logprob == pytest.approx(row[each.token], abs=2e-4)
        assert [token for token, _ in each.top] == np.argsort(-row)[:4].tolist()
        assert [logprob for _, logprob in each.top] == pytest.approx(np.sort(row)[::-1][:4], abs=2e-4)


@pytest.mark.parametrize("settings", [{}, {"max_step_tokens": 9, "max_rows": 4}, {"max_scored_tokens": 5}])
def test_logprobs_of_the_prompt_are_those_of_transformers(settings: dict[str, int]) -> None:
    """Also when the prompt is cached, comes in chunks, and shares its steps with others."""
    driver, prompt = Driver("llama", **settings), some_tokens(50)
    driver.submit("before", prompt)
    driver.run()
    driver.submit("scored", prompt, replace(GREEDY_64, prompt_logprobs=2, n=2))
    driver.submit("other", some_tokens(23))
    told = driver.run().records["scored", 0]
    exact = log_softmax(driver.toy.expected_logits(prompt))
    assert [each.token for each in told.prompt_logprobs] == prompt[1:]
    for index, each in enumerate(told.prompt_logprobs):
        assert each.logprob == pytest.approx(exact[index, each.token], abs=2e-4)
        assert [token for token, _ in each.top] == np.argsort(-exact[index])[:2].tolist()
    assert told.tokens == driver.tokens("scored", 1) == expected("llama", prompt)
    assert driver.tokens("other") == expected("llama", some_tokens(23))
    assert not driver.records["scored", 1].prompt_logprobs and told.num_hit == 0


def test_a_scored_prompt_is_scored_once_also_after_a_preemption() -> None:
    driver, prompt = Driver("llama", num_blocks=12, max_step_tokens=40), some_tokens(60)
    driver.submit("scored", prompt, replace(GREEDY_64, prompt_logprobs=0))
    for n in range(3):
        driver.submit(str(n), some_tokens(40 + n), priority=-1)
    told = driver.run().records["scored", 0]
    assert [each.token for each in told.prompt_logprobs] == prompt[1:]
    assert told.tokens == expected("llama", prompt)


def test_tenants_do_not_share_blocks() -> None:
    driver, prompt = Driver("llama"), some_tokens(40)
    for salt in ("a", "b"):
        driver.submit(salt, prompt, cache=CacheKey(salt=salt))
        assert driver.run().tokens(salt) == expected("llama", prompt)
        assert driver.records[salt, 0].num_hit == 0
