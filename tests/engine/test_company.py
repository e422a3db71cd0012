"""Law 8: what a request answers does not depend on company, chunks, preemption, hits, or the batch's order."""

from __future__ import annotations

import pytest

from quire.types.request import SamplingParams
from tests.engine.driver import Driver
from tests.models.toys import some_tokens

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("each_device")]

PROMPT = some_tokens(41)
WAYS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40),
    "seeded": SamplingParams(seed=12, max_tokens=40),
    "seeded with filters": SamplingParams(seed=12, temperature=0.9, top_k=30, top_p=0.9, min_p=0.01, max_tokens=40),
    "seeded with penalties": SamplingParams(
        seed=7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, max_tokens=40
    ),
}


def alone(way: str) -> list[int]:
    driver = Driver()
    driver.submit("it", PROMPT, WAYS[way])
    return driver.run().tokens("it")


@pytest.mark.parametrize("way", WAYS)
def test_a_request_has_the_same_output_among_31_others(way: str) -> None:
    driver = Driver(num_blocks=400, max_step_tokens=256)
    others = list(WAYS.values())
    for n in range(31):
        driver.submit(str(n), some_tokens(5 + 2 * n), others[n % len(others)])
        if n == 14:
            driver.submit("it", PROMPT, WAYS[way])
        if n % 4 == 0:
            driver.step()
    assert driver.run().tokens("it") == alone(way)
    assert max(rows for _, rows, _ in driver.program.batches) >= 24


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("max_step_tokens", [1, 7, 64, 512])
def test_a_request_has_the_same_output_for_any_chunk_size(way: str, max_step_tokens: int) -> None:
    driver = Driver(max_step_tokens=max_step_tokens, max_rows=1)
    driver.submit("it", PROMPT, WAYS[way])
    assert driver.run().tokens("it") == alone(way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_shared", [16, 23, 40, 41])
def test_a_request_has_the_same_output_with_a_prefix_hit(way: str, num_shared: int) -> None:
    driver = Driver()
    driver.submit("before", [*PROMPT[:num_shared], *some_tokens(8)], WAYS["greedy"])
    driver.run()
    driver.submit("it", PROMPT, WAYS[way])
    assert driver.run().tokens("it") == alone(way)
    assert driver.records["it", 0].num_hit >= min(num_shared, 40)


def test_8_requests_with_a_common_prompt_answer_as_each_does_alone() -> None:
    """They share the blocks of its head, and the device is told so; some read prompts while others end."""
    prompts = [[*some_tokens(37), *some_tokens(2 + n)] for n in range(8)]
    shared = Driver(num_blocks=200, max_step_tokens=24, max_rows=8)
    for n, prompt in enumerate(prompts):
        shared.submit(str(n), prompt, SamplingParams(temperature=0.0, max_tokens=20 + 4 * n))
    shared.run()
    assert max(shared.program.num_grouped) == 8
    for n, prompt in enumerate(prompts):
        one = Driver()
        one.submit("it", prompt, SamplingParams(temperature=0.0, max_tokens=20 + 4 * n))
        assert shared.tokens(str(n)) == one.run().tokens("it")


@pytest.mark.parametrize("way", WAYS)
def test_a_request_has_the_same_output_after_preemptions(way: str) -> None:
    driver = Driver(num_blocks=9, max_step_tokens=48)
    driver.submit("it", PROMPT, WAYS[way])
    for n in range(12):
        driver.step()
        if n % 3 == 0:
            driver.submit(str(n), some_tokens(60 + n), SamplingParams(temperature=0.0, max_tokens=9), priority=-1)
    assert driver.run().tokens("it") == alone(way)
    assert driver.core.counters().num_preemptions >= 1


def test_equal_seeds_give_equal_texts_and_others_differ() -> None:
    def texts(seed: int) -> list[list[int]]:
        driver = Driver()
        driver.submit("it", PROMPT, SamplingParams(seed=seed, n=2, max_tokens=30))
        driver.run()
        return [driver.tokens("it", sample) for sample in range(2)]

    first, again, other = texts(1), texts(1), texts(2)
    assert first == again
    assert len({tuple(text) for text in (*first, *other)}) == 4
