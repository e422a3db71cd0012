"""Norm, gate, rope and embedding kernels with all that is fused into them (see test_ops.py for the ops alone)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.devices._triton.embed import embed
from quire.devices._triton.gate import activate_gate
from quire.devices._triton.norm import Norm, Product, Rounded, add_norm, add_product, to_fp8
from quire.devices._triton.rope import HeadNorm, Heads, RopeTables, TokenPlacement, rope_write
from quire.ops.elementwise import ACTIVATIONS
from quire.ops.norm import rms_norm
from quire.ops.registry import find_op, relative_error
from quire.ops.rope import rope
from tests.devices.interpreted import in_interpreter

pytestmark = [pytest.mark.device]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
EACH_DTYPE = pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
FP8_ERROR = 2.0**-4  # half the distance between two numbers with three mantissa bits


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


def whole(rounded: Rounded) -> np.ndarray:
    return numbers(rounded.values) * numbers(rounded.scale)[:, None]


@EACH_DTYPE
def test_a_product_is_added_before_the_norm_with_its_scales(dtype, place):
    rng = np.random.default_rng(0)
    x, raw, weight = (rng.standard_normal(shape, np.float32) for shape in ((5, 96), (5, 96), (96,)))
    token_scale, column_scale = rng.random(5, np.float32), rng.random(96, np.float32)
    residual = torch.from_numpy(x.copy()).to(place, DTYPES[dtype])
    product = Product(*(torch.from_numpy(each).to(place) for each in (raw, token_scale, column_scale)))
    out = add_norm(residual, product, Norm(torch.from_numpy(weight).to(place), 1e-5))
    total = numbers(torch.from_numpy(x).to(DTYPES[dtype])) + raw * token_scale[:, None] * column_scale
    assert relative_error(numbers(residual), total) <= rms_norm.tolerance[dtype]
    assert relative_error(numbers(out), rms_norm(total, weight, eps=1e-5)) <= rms_norm.tolerance[dtype]


def test_a_norm_can_round_to_fp8_with_a_scale_for_each_token(place):
    for args in (each for each in rms_norm.example_args("bf16") if "group" not in each and each["weight"] is not None):
        x = torch.from_numpy(args["x"]).to(place, torch.bfloat16)
        out = add_norm(x, None, Norm(torch.from_numpy(args["weight"]).to(place), args["eps"]), rounds=True)
        assert relative_error(whole(out), rms_norm(**args)) <= FP8_ERROR


@EACH_DTYPE
def test_a_product_may_be_normed_and_scaled_before_it_is_added(dtype, place):
    rng = np.random.default_rng(1)
    x, raw, post, weight = (rng.standard_normal(shape, np.float32) for shape in ((3, 100), (3, 100), (100,), (100,)))
    post_norm, norm = (Norm(torch.from_numpy(each).to(place), 1e-3) for each in (post, weight))
    product = Product(torch.from_numpy(raw).to(place), factor=0.5, post_norm=post_norm)
    total = numbers(torch.from_numpy(x).to(DTYPES[dtype])) + 0.5 * rms_norm(raw, post, eps=1e-3)
    sums = [torch.from_numpy(x.copy()).to(place, DTYPES[dtype]) for _ in range(2)]
    add_product(sums[0], product)
    out = add_norm(sums[1], product, norm)
    assert all(relative_error(numbers(each), total) <= rms_norm.tolerance[dtype] for each in sums)
    assert relative_error(numbers(out), rms_norm(total, weight, eps=1e-3)) <= rms_norm.tolerance[dtype]


def test_rounding_keeps_a_token_of_zeros(place):
    assert np.array_equal(whole(to_fp8(torch.zeros((2, 64), device=place))), np.zeros((2, 64)))


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("dim", [5000, *in_interpreter(40)])
@pytest.mark.parametrize("kind", ["silu", *in_interpreter("gelu_tanh")])
def test_a_gate_matches_its_reference(kind, dim, rounds, place):
    op, rng = find_op("gated_linear"), np.random.default_rng(dim)
    raw, token_scale = rng.standard_normal((3, 2 * dim), np.float32), rng.random(3, np.float32)
    column_scale = rng.random(2 * dim, np.float32)
    product = Product(*(torch.from_numpy(each).to(place) for each in (raw, token_scale, column_scale)))
    out = activate_gate(product, kind, rounds, torch.float32)
    both = raw * token_scale[:, None] * column_scale
    expected = ACTIVATIONS[kind](both[:, :dim]) * both[:, dim:]
    tolerance = FP8_ERROR if rounds else op.tolerance["f32"]
    assert relative_error(whole(out) if isinstance(out, Rounded) else numbers(out), expected) <= tolerance


@EACH_DTYPE
@pytest.mark.parametrize("rotary", [8, *in_interpreter(16)])
@pytest.mark.parametrize("has_norm", [True, *in_interpreter(False)])
def test_heads_are_normed_rotated_and_written_to_their_slots(has_norm, rotary, dtype, place):
    rng = np.random.default_rng(rotary)
    heads, kv_heads, dim, block_tokens = 6, 2, 16, 16
    positions, slots = np.array([0, 3, 7, 100], np.int32), np.array([5, 16, 33, 63], np.int32)
    raw = rng.standard_normal((4, (heads + 2 * kv_heads) * dim), np.float32)
    raw = numbers(torch.from_numpy(raw).to(DTYPES[dtype]))
    frequencies = (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
    angles = np.arange(128, dtype=np.float32)[:, None] * frequencies
    turns = RopeTables(*(torch.from_numpy(f(angles)).to(place) for f in (np.cos, np.sin)))
    weights = rng.standard_normal((2, dim), np.float32) if has_norm else None
    norm = None if weights is None else HeadNorm(*torch.from_numpy(weights).to(place), eps=1e-6)
    cache = tuple(torch.zeros((4, kv_heads, block_tokens, dim), dtype=DTYPES[dtype], device=place) for _ in range(2))
    where = TokenPlacement(*(torch.from_numpy(each).to(place) for each in (positions, slots)))
    product = Product(torch.from_numpy(raw).to(place, DTYPES[dtype]))
    q = rope_write(product, Heads(heads, kv_heads, dim), turns, where, cache, norm)
    parts = np.split(raw, [heads * dim, (heads + kv_heads) * dim], axis=1)
    if weights is not None:
        parts[:2] = [rms_norm(x, w, eps=1e-6, group=len(w)) for x, w in zip(parts[:2], weights, strict=True)]
    expected = [rope(x, frequencies, positions, head_dim=dim) for x in parts[:2]]
    assert relative_error(numbers(q), expected[0]) <= rope.tolerance[dtype]
    for tensor, values in zip(cache, (expected[1], parts[2]), strict=True):
        written = numbers(tensor)[slots // block_tokens, :, slots % block_tokens].reshape(4, -1)
        assert relative_error(written, values) <= rope.tolerance[dtype]
        assert np.count_nonzero(numbers(tensor)) <= values.size, "nothing else is written"


@EACH_DTYPE
def test_embeddings_are_looked_up_also_for_tokens_sampled_on_the_device(dtype, place):
    op = find_op("embed")
    for args in op.example_args(dtype):
        table = torch.from_numpy(args["table"]).to(place, DTYPES[dtype])
        ids = args["token_ids"].copy()
        last = torch.full((len(ids) + 1,), -1, dtype=torch.int32, device=place)
        last[1 : len(ids) + 1 : 2] = torch.from_numpy(ids[::2].copy()).to(place)
        ids[::2] = -1 - np.arange(1, len(ids) + 1, 2)
        out = embed(torch.from_numpy(ids).to(place), last, table)
        assert np.array_equal(numbers(out), op(**args))
