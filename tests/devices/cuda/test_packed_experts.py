"""Experts in quantized formats: multiplied as they are stored, by few and by many tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quire.devices.base import LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.experts import Experts
from quire.devices.cuda.program import CudaProgram
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from quire.weights.container import Tensor
from tests.devices.cuda.expert_graphs import CLAMPED, LIMITS, ExpertModel, batch_of
from tests.devices.interpreted import on_gpu
from tests.models.toys import Toy, some_tokens, toy_of
from tests.ops.encoded_tensor import EncodedTensor

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


@pytest.mark.parametrize("num_tokens", [1, pytest.param(70, marks=pytest.mark.slow), *on_gpu(2, 7, 128)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_dequantized_weights(name: str, num_tokens: int, place: str):
    program = lowered(MODELS[name], place)
    assert relative_error(logits(program, num_tokens), expected(MODELS[name], num_tokens)) < 1e-4
    (experts,) = (each for each in program.instructions if isinstance(each, Experts))
    assert not experts.linear.scratch.arrived.any(), "counters of shares are reset for the next product"


@pytest.mark.parametrize("name", MODELS)
def test_matrices_take_as_many_bytes_as_in_the_file_or_little_more(name: str, place: str):
    model = MODELS[name]
    (experts,) = (each for each in lowered(model, place).instructions if isinstance(each, Experts))
    inward, outward = experts.linear.inward, experts.linear.outward
    assert inward.matrices.format != "f32" and outward.matrices.format != "f32"
    stored = sum(weight.num_bytes for key, weight in model.weights.items() if len(weight.shape) == 3)
    assert inward.memory.numel() + outward.memory.numel() <= 1.45 * stored  # columns of toys are padded to blocks


@pytest.mark.parametrize("name", ["q4_k_m", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_quantized_experts_in_bfloat16_are_near_the_float_model(name: str, place: str):
    model = MODELS[name]
    found, exact = logits(lowered(model, place, dtype="bf16"), 24), expected(model, 24)
    assert np.median(divergence(exact, found)) < 2e-3


@cache
def small_moe() -> Toy:
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
    return toy_of("Qwen3MoeForCausalLM", {**sizes, "head_dim": 16, "norm_topk_prob": True}, seed=5)


@pytest.mark.parametrize("format, most", [("q8_0", 2e-3), ("q4_0", 0.2)])
def test_a_toy_with_quantized_experts_is_near_the_float_toy(format: str, most: float, place: str):
    """By the divergence of most tokens: of a token whose router flips, it is far larger."""
    toy, tokens = small_moe(), some_tokens(24)
    model = toy.draw()
    stacks = {name: weight for name, weight in model.weights.items() if len(weight.shape) == 3}
    quantized = {
        name: Weight(name, weight.shape, format, _tensor(name, weight.float32(), format))
        for name, weight in stacks.items()
    }
    assert len(quantized) == 3 * 2
    weights, options = {**model.weights, **quantized}, LoweringOptions(dtype="f32", captures=False)
    program = CudaDevice(place).lower(model.graph, weights, LIMITS, options)
    batch = Batch.of([RowPart(tokens, 0, [1, 2], len(tokens))], LIMITS.block_tokens)
    found = program.launch(batch).result().logits
    assert found is not None
    assert np.median(divergence(toy.expected_logits(tokens), found)) < most


def _tensor(name: str, numbers: np.ndarray, format: str) -> Tensor:
    encoded = EncodedTensor.of(name, numbers, format)
    return Tensor(name, encoded.shape, format, encoded.data)


def divergence(exact: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The KL divergence of each row."""
    p, q = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (exact, found))
    return (np.exp(p) * (p - q)).sum(-1)


def test_gate_and_up_of_two_formats_are_dequantized(place: str):
    model = ExpertModel(("q4_k", "q8_0"), num_experts=3)
    model._stack("0.up", "q5_k", model.ffn, model.dim)
    assert relative_error(logits(lowered(model, place), 3), expected(model, 3)) < 1e-4
