"""Experts in quantized formats: multiplied as they are stored, by few and by many tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.devices.base import LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.experts import Experts
from quire.devices.cuda.program import CudaProgram
from quire.graph.interpret import Interpreter
from quire.ops.registry import relative_error
from tests.devices.cuda.expert_graphs import CLAMPED, LIMITS, ExpertModel, batch_of
from tests.devices.interpreted import on_gpu

pytestmark = pytest.mark.device

MODELS = {
    "q4_k_m": ExpertModel(("q4_k", "q6_k")),
    "q5_k": ExpertModel(("q5_k", "q8_0")),
    "q4_0": ExpertModel(("q4_0", "q5_0"), dim=96, ffn=256),
    "gpt-oss": ExpertModel(("mxfp4", "mxfp4"), dim=544, ffn=160, attrs=CLAMPED, has_bias=True),
    "awq": ExpertModel(("int4", "int4"), dim=128, ffn=64),
}


def lowered(model: ExpertModel, place: str, **options: object) -> CudaProgram:
    options = {"dtype": "f32", "captures": False, **options}
    limits = replace(LIMITS, kv_dtype=str(options["dtype"]))
    return CudaDevice(place).lower(model.draw(), model.weights, limits, LoweringOptions(**options))  # type: ignore[arg-type]


def logits(program: CudaProgram, num_tokens: int) -> np.ndarray:
    found = program.launch(batch_of(num_tokens)).result().logits
    assert found is not None
    return found


def expected(model: ExpertModel, num_tokens: int) -> np.ndarray:
    return Interpreter(model.draw(), model.weights, LIMITS.num_blocks).run(batch_of(num_tokens))


@pytest.mark.parametrize("num_tokens", [1, 40, *on_gpu(2, 7, 128)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_dequantized_weights(name: str, num_tokens: int, place: str):
    program = lowered(MODELS[name], place)
    assert relative_error(logits(program, num_tokens), expected(MODELS[name], num_tokens)) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_matrices_take_as_many_bytes_as_in_the_file_or_little_more(name: str, place: str):
    model = MODELS[name]
    (experts,) = (each for each in lowered(model, place).instructions if isinstance(each, Experts))
    inward, outward = experts.linear.inward, experts.linear.outward
    assert inward.matrices.format != "f32" and outward.matrices.format != "f32"
    stored = sum(weight.num_bytes for key, weight in model.weights.items() if len(weight.shape) == 3)
    assert inward.memory.numel() + outward.memory.numel() <= 1.45 * stored  # columns of toys are padded to blocks


@pytest.mark.parametrize("name", ["q4_k_m", "gpt-oss"])
def test_quantized_experts_in_bfloat16_are_near_the_float_model(name: str, place: str):
    model = MODELS[name]
    found, exact = logits(lowered(model, place, dtype="bf16"), 24), expected(model, 24)
    log = [each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (exact, found)]
    divergence = (np.exp(log[0]) * (log[0] - log[1])).sum(-1)
    assert np.median(divergence) < 2e-3  # of a token whose choice of experts flips it is far larger


def test_gate_and_up_of_two_formats_are_dequantized(place: str):
    model = ExpertModel(("q4_k", "q8_0"), num_experts=3)
    model._stack("0.up", "q5_k", model.ffn, model.dim)
    assert relative_error(logits(lowered(model, place), 3), expected(model, 3)) < 1e-4
