"""The contract of every architecture on the GPU: toys give the logits of transformers, plain and fused."""

from __future__ import annotations

import numpy as np
import pytest

from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.ops.registry import relative_error
from tests.devices.cpu.programs import session
from tests.models.toys import CASES, FIRST_CASES, make_toy, some_tokens

pytestmark = pytest.mark.device

NUM_BLOCKS = 80
LIMITS = Limits(max_tokens=1000, max_rows=4, max_logits=1000, max_blocks=66, num_blocks=NUM_BLOCKS, kv_dtype="f32")
FUSE = pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
SHORT, LENGTHS = 9, (1, 17, 300, 1000)  # Triton's interpreter takes 20 ms for a token
SHORT_CASES = [
    pytest.param(
        name,
        fuse,
        marks=() if number % (4 if fuse else 16) == 0 else pytest.mark.slow,
        id=f"{name}-{'fused' if fuse else 'plain'}",
    )
    for number, name in enumerate(name for name in FIRST_CASES if CASES[name].min_tokens <= SHORT)
    for fuse in (True, False)
]


def texts_of(case: str, place: str, fuse: bool, seed: int):
    model = make_toy(case).draw()
    options = LoweringOptions(dtype="f32", fuse=fuse, captures=False)
    return session(CudaDevice(place).lower(model.graph, model.weights, LIMITS, options), model, seed, NUM_BLOCKS)


@pytest.mark.interpreted
@pytest.mark.parametrize("case, fuse", SHORT_CASES)
def test_logits_of_a_short_prompt_are_those_of_transformers(case: str, fuse: bool, place: str):
    """In two chunks, and a last token by itself."""
    tokens, texts = some_tokens(SHORT), texts_of(case, place, fuse, seed=1)
    pieces = [texts.step({"a": tokens[start:end]})["a"] for start, end in ((0, 3), (3, SHORT - 1), (SHORT - 1, SHORT))]
    assert relative_error(np.concatenate(pieces), make_toy(case).expected_logits(tokens)) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@FUSE
def test_logits_of_prompts_of_several_lengths_are_those_of_transformers(case: str, fuse: bool, place: str):
    for length in (each for each in LENGTHS if CASES[case].min_tokens <= each <= CASES[case].max_tokens):
        tokens = some_tokens(length)
        actual = texts_of(case, place, fuse, seed=length).step({"a": tokens})["a"]
        assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4, length


@pytest.mark.gpu
@pytest.mark.parametrize("case", FIRST_CASES)
@FUSE
def test_64_greedy_tokens_are_those_of_transformers(case: str, fuse: bool, place: str):
    prompt, texts = some_tokens(max(9, CASES[case].min_tokens)), texts_of(case, place, fuse, seed=2)
    tokens = [int(texts.step({"a": prompt})["a"][-1].argmax())]
    while len(tokens) < 64:
        tokens.append(int(texts.step({"a": tokens[-1:]})["a"][-1].argmax()))
    assert tokens == make_toy(case).expected_greedy(prompt, 64)
