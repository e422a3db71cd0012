"""A model with experts as a program: law 8 in deterministic mode, captured steps, and the kernels that it declines."""

from __future__ import annotations

import logging
from copy import deepcopy
from functools import cache

import numpy as np
import pytest

from quire.devices.cuda.experts import Experts, Route
from quire.devices.cuda.few_rows import FewRows
from quire.devices.cuda.instructions import Forget, Select
from quire.types.request import SamplingParams
from tests.devices.cuda.models import SIZES, CudaDriver, Texts, lowered
from tests.models.toys import Toy, some_tokens, toy_of

pytestmark = pytest.mark.device

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=32)


@cache
def toy() -> Toy:
    return toy_of("Qwen3MoeForCausalLM", {**SIZES, **EXPERTS}, seed=3)


def test_a_layer_with_experts_has_four_instructions_with_fused_kernels(place):
    program = lowered(toy().draw(), place)
    kinds = [type(each).__name__ for each in program.instructions if not isinstance(each, Forget | Select)]
    assert kinds == ["Embed", "Attend", "AddProduct", "Route", "Experts", "Head"]
    assert program.formats == {"bfloat16": sum(weight_sizes())}


def weight_sizes() -> list[int]:
    weights = toy().draw().weights
    return [int(np.prod(each.shape)) for name, each in weights.items() if len(each.shape) > 1 and _is_multiplied(name)]


def _is_multiplied(name: str) -> bool:
    return name != "embed" and not name.endswith("router")


def test_the_one_kernel_step_declines_experts_and_says_why(place, caplog):
    program = lowered(toy().draw(), place)
    with caplog.at_level(logging.INFO, "quire.devices.cuda"):
        assert FewRows.of(program.instructions, program.caches) is None
    assert "does not support experts" in caplog.text
    assert any(isinstance(each, Route) for each in program.instructions)
    assert any(isinstance(each, Experts) for each in program.instructions)


def test_in_deterministic_mode_chunks_and_other_rows_change_no_bit(place):
    tokens, other = some_tokens(9), some_tokens(12)[::-1]

    def logits(chunks: list[int], neighbour: bool) -> np.ndarray:
        texts = Texts(lowered(toy().draw(), place, deterministic=True, captures=False))
        start, found = 0, []
        for number, count in enumerate(chunks):
            step = {0: tokens[start : start + count]}
            if neighbour and number % 2 == 0:
                step[1] = other[start : start + count]
            found.append(texts.step(step, count)[:count])
            start += count
        return np.concatenate(found)

    whole = logits([9], neighbour=False)
    assert np.array_equal(whole, logits([4, 4, 1], neighbour=True))


@pytest.mark.gpu
def test_greedy_tokens_of_captured_steps_are_those_of_transformers(place):
    on_gpu = Toy(deepcopy(toy().torch_model).to(place), toy().checkpoint)
    driver = CudaDriver(place, on_gpu.checkpoint, dtype="f32", deterministic=False, max_step_tokens=64)
    prompts = {str(count): some_tokens(count) for count in (1, 15, 40, 90, 130)}
    for each, prompt in prompts.items():
        driver.submit(each, prompt, GREEDY)
    driver.run()
    for each, prompt in prompts.items():
        assert driver.tokens(each) == on_gpu.expected_greedy(prompt, GREEDY.max_tokens), each


@pytest.mark.gpu
def test_padding_changes_no_bit_of_captured_steps(place):
    """In deterministic mode, 5 rows in a bucket of 6."""

    def logits(captures: bool) -> np.ndarray:
        texts = Texts(lowered(toy().draw(), place, deterministic=True, captures=captures))
        texts.step({row: some_tokens(9 + row) for row in range(5)})
        return np.stack([texts.step({row: [row + at] for row in range(5)}) for at in range(9)])

    assert np.array_equal(logits(True), logits(False))
