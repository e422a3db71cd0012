"""An engine over the device: a request's output does not depend on other requests, chunks, cache hits or overlap."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from quire.devices.cuda import FACTS
from quire.types.request import SamplingParams
from tests.devices.cuda.models import CudaDriver, small
from tests.devices.interpreted import on_gpu
from tests.engine.driver import Driver
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

NAME = "qwen3"  # of one layer
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
SCORED = replace(GREEDY, logprobs=3)
PROMPT = some_tokens(18)


def run_alone(place: str, **settings: Any) -> CudaDriver:
    driver = CudaDriver(place, small(NAME).checkpoint, **settings)
    driver.submit("it", PROMPT, SCORED)
    driver.run()
    return driver


@cache
def alone(place: str) -> CudaDriver:
    return run_alone(place)


def is_as_alone(driver: CudaDriver, place: str) -> bool:
    """Return whether tokens and logprobs, and so the logits, equal those of the request alone, bit for bit."""
    found, expected = driver.records["it", 0], alone(place).records["it", 0]
    return found.tokens == expected.tokens and found.logprobs == expected.logprobs


@pytest.mark.parametrize("name", ["llama", *on_gpu("mistral-window", "qwen3")])
def test_greedy_tokens_in_float32_are_those_of_transformers(name, place):
    driver = CudaDriver(place, small(name).checkpoint, dtype="f32", deterministic=False)
    for count in (18, 3):
        driver.submit(str(count), some_tokens(count), GREEDY)
    driver.run()
    for count in (18, 3):
        assert driver.tokens(str(count)) == small(name).expected_greedy(some_tokens(count), 4)


def test_chunks_change_no_bit(place):
    assert is_as_alone(run_alone(place, max_step_tokens=7, max_rows=4), place)


def test_other_requests_and_a_cache_hit_change_no_bit(place):
    driver = CudaDriver(place, small(NAME).checkpoint)
    driver.submit("other", [*PROMPT[:16], 3, 1], GREEDY)
    for _ in range(3):
        driver.step()
    driver.submit("it", PROMPT, SCORED)
    driver.submit("third", some_tokens(6), GREEDY)
    driver.run()
    assert is_as_alone(driver, place) and driver.records["it", 0].num_hit >= 16


def test_a_preemption_changes_no_bit(place):
    driver = CudaDriver(place, small(NAME).checkpoint, num_blocks=4, max_context=48)
    driver.submit("it", PROMPT, SCORED)
    for _ in range(3):
        driver.step()
    driver.submit("urgent", some_tokens(40), replace(GREEDY, max_tokens=2), priority=-1)
    driver.run()
    assert is_as_alone(driver, place) and driver.core.counters().num_preemptions > 0


def test_host_and_device_sampled_rows_equal_those_of_the_references_at_any_depth_in_flight(place):
    """In float32, to be comparable with the references."""
    ways = {
        "greedy": GREEDY,
        "logprobs": SCORED,
        "penalties": replace(GREEDY, frequency_penalty=0.4, repetition_penalty=1.2),
        "seeded": SamplingParams(seed=3, top_k=30, top_p=0.9, min_p=0.01, max_tokens=4),
    }
    checkpoint = small(NAME).checkpoint
    deep = CudaDriver(place, checkpoint, dtype="f32", deterministic=False)
    flat = CudaDriver(place, checkpoint, max_in_flight=1, dtype="f32", deterministic=False)
    host = Driver(checkpoint=checkpoint)
    for driver in (deep, flat, host):
        for index, (name, sampling) in enumerate(ways.items()):
            driver.submit(name, some_tokens(4 + index), sampling)
        driver.run()
    for name in ways:
        assert deep.tokens(name) == flat.tokens(name)
        if name != "seeded":  # the device draws in the order of token ids, the host in the order of likelihood
            assert deep.tokens(name) == host.tokens(name)


# A window of 7 tokens, and a layer that keeps all of them, with 10 blocks each.
WINDOWED = {"max_step_tokens": 16, "max_rows": 4, "num_blocks": 10, "max_context": 160}


@pytest.mark.slow
def test_blocks_behind_a_window_are_used_again_while_two_steps_are_in_flight(place):
    """Prompts in chunks, with more blocks together than the window group has."""
    toy, counts = small("qwen2-windows"), (75, 50, 60)
    driver = CudaDriver(place, toy.checkpoint, dtype="f32", deterministic=False, **WINDOWED)
    num_blocks = driver.core.counters().num_window_blocks
    assert FACTS.steps_in_flight == 2 and 0 < num_blocks < sum(-(-count // 16) for count in counts)
    for count in counts:
        driver.submit(str(count), some_tokens(count), GREEDY)
    driver.run()
    for count in counts:
        assert driver.tokens(str(count)) == toy.expected_greedy(some_tokens(count), 4)


@pytest.mark.slow
def test_a_hit_in_a_model_with_windows_changes_no_bit(place):
    """The second prompt resumes inside a block: its head is copied in both groups."""
    prefix, alone = some_tokens(43), CudaDriver(place, small("qwen2-windows").checkpoint, **WINDOWED)
    alone.submit("it", [*prefix, 5, 9], SCORED)
    alone.run()
    driver = CudaDriver(place, small("qwen2-windows").checkpoint, **WINDOWED)
    driver.submit("first", [*prefix, 7], GREEDY)
    driver.run()
    driver.submit("it", [*prefix, 5, 9], SCORED)
    driver.run()
    found, expected = driver.records["it", 0], alone.records["it", 0]
    assert found.num_hit == len(prefix)
    assert found.tokens == expected.tokens and found.logprobs == expected.logprobs
