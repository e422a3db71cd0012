"""Tests that need a GPU, or its speed: captured steps, overlap, accuracy over many tokens, long use."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton import chain
from quire.devices.base import Limits
from quire.devices.cuda import warm_up
from quire.engine.messages import Cancel
from quire.models.draw import draw
from quire.types.request import FinishReason, SamplingParams
from tests.devices.cuda.models import KINDS, CudaDriver, Texts, kv_tensor, lowered, random_llama, rms_error, small
from tests.models.toys import Toy, some_tokens

pytestmark = [pytest.mark.device, pytest.mark.gpu]

NUM_TOKENS = 48
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
SEEDED = SamplingParams(seed=3, temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, max_tokens=NUM_TOKENS)
VOCAB = 1024
ACCURACY = Limits(max_tokens=256, max_rows=4, max_logits=256, max_blocks=16, num_blocks=40)
MAX_KL = 0.05  # nats
NO_FARTHER = 1.5  # times the error: roundings differ


@cache
def checkpoint() -> Any:
    return random_llama(vocab=VOCAB)


@pytest.mark.parametrize("name", KINDS)
def test_greedy_tokens_in_float32_are_those_of_transformers_on_the_same_gpu(name, place):
    toy = Toy(deepcopy(small(name).torch_model).to(place), small(name).checkpoint)
    driver = CudaDriver(place, toy.checkpoint, dtype="f32", deterministic=False, max_step_tokens=64)
    prompts = {str(count): some_tokens(count) for count in (1, 15, 16, 40, 90, 130, 200)}
    for each, prompt in prompts.items():
        driver.submit(each, prompt, GREEDY)
    driver.run()
    for each, prompt in prompts.items():
        assert driver.tokens(each) == toy.expected_greedy(prompt, NUM_TOKENS), each


@pytest.mark.parametrize("name", KINDS)
def test_logits_in_bfloat16_are_as_close_to_float32_as_those_of_transformers(name, place):
    """A prompt, and tokens after it in captured steps, in buckets that they do not fill."""
    toy, tokens = Toy(deepcopy(small(name).torch_model).to(place), small(name).checkpoint), some_tokens(60)
    exact, texts = toy.expected_logits(tokens), Texts(lowered(toy.draw(), place))
    theirs = replace(toy, torch_model=deepcopy(toy.torch_model).bfloat16()).expected_logits(tokens)
    of_prompt = texts.step({0: tokens[:32]}, 32)
    assert rms_error(of_prompt, exact[:32]) <= NO_FARTHER * rms_error(theirs[:32], exact[:32])
    for row in range(1, 5):
        texts.step({row: tokens[:31]})
    after, steps = range(32, 60), []
    for at in after:
        steps.append(texts.step({row: [tokens[at - (row > 0)]] for row in range(5)}))
    for row, logits in enumerate(np.stack(steps, 1)):
        places = [at - (row > 0) for at in after]
        assert rms_error(logits, exact[places]) <= NO_FARTHER * rms_error(theirs[places], exact[places]), row


@pytest.mark.parametrize("quantize", [None, "fp8"])
def test_padding_changes_no_bit_of_captured_steps(quantize, place):
    """In deterministic mode, 5 rows in a bucket of 6; padding writes to none of their blocks."""
    prompts = {row: np.random.default_rng(row).integers(0, VOCAB, 9 + row).tolist() for row in range(5)}
    limits = replace(ACCURACY, max_rows=8)

    def logits(captures: bool) -> tuple[np.ndarray, torch.Tensor]:
        program = lowered(draw(checkpoint()), place, limits, deterministic=True, captures=captures, quantize=quantize)
        texts = Texts(program)
        texts.step(prompts)
        steps = [texts.step({row: [row + at] for row in range(5)}) for at in range(9)]
        return np.stack(steps), kv_tensor(program.caches)[:, :, : program.num_blocks].float().cpu()

    (captured, kept), (launched, there) = logits(True), logits(False)
    assert np.array_equal(captured, launched) and torch.equal(kept, there)


def test_every_kernel_is_loaded_before_the_first_step(place):
    """Otherwise the first requests would wait for a compiler."""
    program = lowered(draw(checkpoint()), place)
    known = set(chain._COMPILED)
    for batch in warm_up.warm_up_steps(program.limits):
        program.launch(batch).result()
    assert known and set(chain._COMPILED) == known


def test_graphs_share_the_memory_of_their_logits(place):
    limits = replace(ACCURACY, max_rows=200, max_tokens=256, num_blocks=300)
    program = lowered(draw(random_llama(vocab=65536, num_layers=2)), place, limits=limits)
    texts = Texts(program)
    texts.step({0: some_tokens(5)})
    texts.step({0: [7]})
    texts.step({0: [8]})
    before = torch.cuda.memory_allocated()
    while program.use_idle_time():
        pass
    captured = [each for each in program._captured.values() if each is not None]
    logits = sum(each.logits.numel() * 4 for each in captured)
    assert len(captured) > 20 and torch.cuda.memory_allocated() - before < logits / 4


def tokens_of_requests(place: str, captures: bool, max_in_flight: int, **settings: Any) -> dict[str, list[int]]:
    """Return the tokens of 14 requests of every kind that arrive while others run. Some share a prefix."""
    settings = {"num_blocks": 60, "max_context": 512, "max_step_tokens": 96, "captures": captures, **settings}
    driver = CudaDriver(place, checkpoint(), max_in_flight, **settings)
    ways = [GREEDY, SEEDED, replace(GREEDY, logprobs=2), replace(GREEDY, frequency_penalty=0.3)]
    for n in range(14):
        head = some_tokens(50) if n % 3 == 0 else []
        driver.submit(str(n), [*head, *some_tokens(3 + 7 * n)], ways[n % 4])
        driver.step()
    driver.run()
    return {str(n): driver.tokens(str(n)) for n in range(14)}


def test_captures_overlap_batching_and_preemption_change_no_token_in_deterministic_mode(place):
    expected = tokens_of_requests(place, captures=False, max_in_flight=1, max_rows=1, num_blocks=200)  # one at a time
    for captures, max_in_flight in ((True, 2), (True, 1), (False, 2)):
        assert tokens_of_requests(place, captures, max_in_flight) == expected, (captures, max_in_flight)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@cache
def distributions(place: str, quantize: str | None, kv_dtype: str) -> np.ndarray:
    """Return log probabilities after each of 240 tokens of two prompts, and of 200 more that are decoded one by one."""
    texts = Texts(lowered(draw(checkpoint()), place, ACCURACY, quantize=quantize, kv_dtype=kv_dtype), num_blocks=15)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 440).tolist()
    found = [texts.step({0: tokens[:200]}, 200), texts.step({1: tokens[200:240]}, 40)]
    found += [texts.step({1: tokens[at : at + 1]}) for at in range(240, 440)]
    return log_softmax(np.concatenate(found))


@pytest.mark.parametrize("quantize, kv_dtype", [("fp8", "bf16"), (None, "f8_e4m3"), ("fp8", "f8_e4m3")])
def test_fp8_costs_little_accuracy(quantize, kv_dtype, place):
    """Against bfloat16; the figure is printed (`pytest -s`)."""
    plain, coarse = distributions(place, None, "bf16"), distributions(place, quantize, kv_dtype)
    divergence = float((np.exp(plain) * (plain - coarse)).sum(-1).mean())
    same = float((plain.argmax(-1) == coarse.argmax(-1)).mean())
    weights = quantize or "bf16"
    print(f"weights {weights}, KV {kv_dtype}: mean KL {divergence:.5f} nats, the same likeliest token {same:.1%}")
    assert 0 < divergence <= MAX_KL


def run_many(place: str, checkpoint: Any, num_requests: int, **settings: Any) -> CudaDriver:
    """Run requests of random lengths and kinds, some cancelled, in a cache that is too small for all of them."""
    driver, rng = CudaDriver(place, checkpoint, deterministic=False, **settings), np.random.default_rng(1)
    heads = [rng.integers(0, 100, 48).tolist() for _ in range(4)]
    ways = [GREEDY, SEEDED, replace(GREEDY, logprobs=1), replace(SEEDED, repetition_penalty=1.1), replace(SEEDED, n=2)]
    waiting = [f"{n}" for n in range(num_requests)]
    while waiting or driver.core.counters().num_running or driver.core.counters().num_waiting:
        for name in [waiting.pop() for _ in range(min(int(rng.integers(0, 12)), len(waiting)))]:
            prompt = rng.integers(0, 100, int(rng.integers(1, 150))).tolist()
            prompt = [*heads[int(rng.integers(4))], *prompt] if rng.random() < 0.4 else prompt
            way = replace(ways[int(rng.choice(5, p=[0.4, 0.3, 0.1, 0.1, 0.1]))], max_tokens=int(rng.integers(1, 60)))
            driver.submit(name, prompt, way, priority=int(rng.integers(0, 3)))
        if rng.random() < 0.2:
            running = [name for (name, _), told in driver.records.items() if not told.has_ended]
            if running:
                driver.handle(Cancel(running[int(rng.integers(len(running)))]))
        driver.step()
        if rng.random() < 0.02:
            driver.core.check()
    driver.run()
    return driver


def test_2000_requests_leave_no_blocks_or_memory_in_use(place):
    settings = {"num_blocks": 500, "max_rows": 96, "max_step_tokens": 768, "max_context": 512}
    driver = run_many(place, checkpoint(), 2000, **settings)
    counters = driver.core.counters()
    failed = {name: record.error for name, record in driver.records.items() if record.error is not None}
    assert not failed, failed  # a NaN logit would fail its request
    ends = [record.finish for record in driver.records.values()]
    assert len({name for name, _ in driver.records}) == 2000 and ends.count(FinishReason.CANCELLED) >= 50
    assert counters.num_preemptions > 0 and counters.num_held_blocks == 0
    assert counters.num_running == counters.num_waiting == 0
    assert max(driver.program.num_grouped) > 0, "some requests share a prefix"
    before = torch.cuda.memory_allocated()
    driver.submit("after", some_tokens(40), GREEDY)
    assert len(driver.run().tokens("after")) == NUM_TOKENS and torch.cuda.memory_allocated() - before < 32 << 20
