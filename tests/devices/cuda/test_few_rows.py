"""Steps of few rows with one token each take a kernel of their own, and answer what the interpreter of graphs does."""

from __future__ import annotations

import pytest

from quire.devices import base
from quire.devices.cuda.device import CudaDevice
from quire.ops.registry import relative_error
from tests.devices.cpu.programs import session
from tests.models.toys import Session, make_toy, some_tokens

pytestmark = [pytest.mark.device, pytest.mark.gpu]  # so long a prompt takes the interpreter too long
LIMITS = base.Limits(
    max_tokens=256, max_rows=20, max_logits=256, max_blocks=16, num_blocks=60, block_tokens=16, kv_dtype="f32"
)


def test_decoding_goes_on_from_a_prompt(place):
    model = make_toy("qwen3").draw()
    program = CudaDevice(place).lower(model.graph, model.weights, LIMITS, dtype="f32")
    here, there = session(program, model, num_blocks=60), Session(model, 60)
    steps = [
        {"a": some_tokens(127), "b": some_tokens(15)},
        {"a": [3], "b": [5]},
        {"a": [7, 11], "b": [2]},  # not of single tokens
        {"a": [9], "b": [4], "c": [6]},  # in two parts, in one, and a text's first token
    ]
    for step in steps:
        actual, expected = here.step(step), there.step(step)
        for text in step:
            assert relative_error(actual[text], expected[text]) < 1e-4, (step.keys(), text)
