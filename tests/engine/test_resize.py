"""KV memory moves: an engine is told to use fewer blocks or more while it runs, and answers as if nothing happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.config import load as load_config
from quire.engine.llm import LLM
from quire.engine.load import build_engine
from quire.engine.messages import Resize, Resized
from quire.types.errors import ContextTooLong
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.engine.driver import Driver
from tests.models.toys import make_toy, some_tokens
from tests.runner.stand_in import InterpreterDevice

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SETTINGS = {"max_context": 128, "max_step_tokens": 48, "max_rows": 32}  # a whole context is 8 blocks


def resized(driver: Driver, num_blocks: int) -> Resized:
    driver.handle(Resize(num_blocks))
    answer = driver.messages[-1]
    assert isinstance(answer, Resized)
    return answer


@pytest.mark.device
@pytest.mark.usefixtures("each_device")
def test_requests_have_the_same_output_before_during_and_after_resizes() -> None:
    prompts = {str(n): some_tokens(20 + 5 * n) for n in range(8)}
    calm = Driver(num_blocks=60, **SETTINGS)
    moved = Driver(num_blocks=60, **SETTINGS)
    for driver in (calm, moved):
        for name, prompt in prompts.items():
            driver.submit(name, prompt, GREEDY)
    sizes = [60, 8, 30, 9, 60, 12, 8, 60]
    for size in sizes:
        resized(moved, size)
        moved.core.check()
        for _ in range(6):
            moved.step()
    resized(moved, 8)
    moved.run(), calm.run()
    for name in prompts:
        assert moved.tokens(name) == calm.tokens(name)
    assert moved.core.counters().num_preemptions > 0 == calm.core.counters().num_preemptions
    assert moved.core.counters().num_blocks == 8


@pytest.mark.device
@pytest.mark.usefixtures("each_device")
def test_held_blocks_are_returned_when_they_are_released() -> None:
    driver = Driver(num_blocks=60, **SETTINGS)
    for n in range(6):
        driver.submit(str(n), some_tokens(60 + n), GREEDY)
    while driver.core.counters().num_held_blocks < 20:
        driver.step()
    answer = resized(driver, 8)
    assert answer.num_blocks == 8 and answer.num_held >= 20
    assert len(driver.program.released) == 60 - answer.num_held  # the rest is held
    driver.run()
    assert driver.core.counters().num_held_blocks == 0
    assert driver.step() is False and len(driver.program.released) == 52
    assert resized(driver, 60).num_blocks == 60 and driver.program.released == []


@pytest.mark.device
def test_a_resize_is_bounded_by_one_context_and_the_reserved_blocks() -> None:
    driver = Driver(num_blocks=20, most_blocks=40, **SETTINGS)
    assert driver.core.counters().num_blocks == 20 and driver.program.limits.num_blocks == 40
    assert [resized(driver, size).num_blocks for size in (0, 1, 8, 9, 40, 1000)] == [8, 8, 8, 9, 40, 40]


@pytest.mark.device
def test_the_smallest_cache_still_serves_the_longest_request() -> None:
    driver = Driver(num_blocks=60, **SETTINGS)
    resized(driver, 1)
    driver.submit("longest", some_tokens(126), SamplingParams(temperature=0.0))
    driver.submit("too long", some_tokens(128), GREEDY)
    driver.run()
    assert driver.records["longest", 0].finish is FinishReason.LENGTH and len(driver.tokens("longest")) == 2
    assert isinstance(driver.records["too long", 0].error, ContextTooLong)


@pytest.mark.device
def test_a_shrinking_cache_drops_idle_sessions_before_it_waits_for_requests() -> None:
    driver = Driver(num_blocks=60, **SETTINGS)
    for n in range(4):
        driver.submit(str(n), some_tokens(60 + n), GREEDY, session=str(n))
    driver.run()
    held = driver.core.counters().num_held_blocks
    answer = resized(driver, 10)
    assert held > 10 >= answer.num_held > 0  # the newest may stay
    assert driver.core.counters().num_sessions > 0
    driver.core.check()


@pytest.mark.device
def test_an_engine_reports_its_reserved_blocks_and_its_memory() -> None:
    config = load_config({"num_blocks": 20, "most_blocks": 50, **SETTINGS}, environ={})
    ready = build_engine(make_toy("llama").checkpoint, InterpreterDevice(), config).ready
    assert (ready.num_blocks, ready.most_blocks) == (20, 50)
    assert ready.block_bytes > 0 and ready.weight_bytes > 0
    alone = load_config({"num_blocks": 20, **SETTINGS}, environ={})
    assert build_engine(make_toy("llama").checkpoint, InterpreterDevice(), alone).ready.most_blocks == 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells resident memory on Linux alone")
def test_the_real_model_returns_memory_and_has_the_same_output(model_file: Path) -> None:
    pytest.importorskip("quire.devices.cpu._native")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(model_file, num_blocks=300, max_context=512, max_rows=8, kv_dtype="f32") as llm:
        before = llm.chat(question, greedy)[0].tokens
        one_block = llm.client.ready.block_bytes
        for n in range(6):  # six contexts of 400 tokens stay cached: 150 blocks
            request = GenerateRequest(f"fill-{n}", tuple(100 + n * 7 + i % 97 for i in range(400)), greedy)
            list(llm.client.stream(request))
        full = resident_bytes()
        cached = llm.client.counters().num_cached_blocks
        running = llm.client.stream(GenerateRequest("live", tuple(range(500, 560)), SamplingParams(max_tokens=30)))
        next(running)
        answer: Resized = llm.client.ask(Resize(0)).result(30)
        assert answer.num_blocks == 32
        during = llm.chat(question, greedy)[0].tokens
        list(running)
        given_back = full - resident_bytes()
        assert given_back > (cached - 40) * one_block * 0.8, (given_back / 1e6, cached, one_block)
        assert llm.client.ask(Resize(300)).result(30).num_blocks == 300
        assert before == during == llm.chat(question, greedy)[0].tokens
