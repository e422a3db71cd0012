"""Products with packed matrices against the dequantization of the gguf package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from quire.devices._triton.expert_formats import expert_address
from quire.devices._triton.packed import FEW, packed_products
from quire.devices._triton.packing import (
    PACKED,
    CannotPack,
    int4_format,
    pack,
    random_unpacked,
    unpack_blocks,
    unpack_int4,
)
from quire.ops.registry import relative_error
from quire.quant.int4 import Int4
from quire.quant.registry import all_formats
from tests.devices.interpreted import in_interpreter
from tests.quant.blocks import random_blocks, weight_blocks

gguf = pytest.importorskip("gguf")

pytestmark = [pytest.mark.device]
BLOCKED = [name for name in PACKED if not name.startswith("int4")]
ROWS, BN = 24, 32


@triton.jit
def _product(
    table, x, out, N, M, K: tl.constexpr, FORMAT: tl.constexpr, GATE: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr
):
    n = tl.arange(0, BN)
    tokens = tl.program_id(0) * BM + tl.arange(0, BM)
    address = expert_address(table, 0)
    acc, acc_up = packed_products(
        x, tokens, tokens < M, address, tl.minimum(n, N - 1), N, 0, 1, K, BM, BN, 2, FORMAT, GATE
    )
    mask = (tokens < M)[None, :] & (n < N)[:, None]
    to = out + tokens[None, :] * (N * 2 if GATE else N) + n[:, None]
    tl.store(to, acc, mask=mask)
    if GATE:
        tl.store(to + N, acc_up, mask=mask)


def product(
    format: str, matrix: torch.Tensor, x: torch.Tensor, is_gate: bool = False, height: int = FEW.value
) -> np.ndarray:
    """x [M, K] times the transpose of the matrix: float32 [M, rows]. `height`: tokens of a program."""
    num_tokens, columns = x.shape
    rows = len(matrix) // PACKED[format].num_bytes(1, columns)
    out = torch.zeros((num_tokens, rows), device=x.device)
    table = torch.tensor([matrix.data_ptr()], device=x.device)
    grid, num_rows = (triton.cdiv(num_tokens, height),), rows // 2 if is_gate else rows
    _product[grid](table, x, out, num_rows, num_tokens, columns, format, is_gate, BN, height)
    return out.cpu().numpy()


def by_gguf(name: str, raw: np.ndarray) -> np.ndarray:
    return gguf.dequantize(raw, gguf.GGMLQuantizationType(all_formats()[name].gguf_type))


def packed_of(name: str, raw: np.ndarray, place: str) -> torch.Tensor:
    return pack(PACKED[name], unpack_blocks(name, torch.from_numpy(raw).to(place)))


def eye(columns: int, place: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.eye(columns, dtype=dtype, device=place)


@pytest.mark.parametrize("name", BLOCKED)
def test_the_product_with_an_identity_matrix_is_the_dequantized_matrix(name, place):
    format, columns = all_formats()[name], 256 if PACKED[name].block == 256 else 192
    raw = random_blocks(format, ROWS * columns // format.block_weights, seed=1).reshape(ROWS, -1)
    if name == "mxfp4":
        raw[:, ::17] = np.random.default_rng(2).integers(0, 129, raw[:, ::17].shape)
    found = product(name, packed_of(name, raw, place), eye(columns, place), is_gate=name == "q4_k").T
    np.testing.assert_allclose(found, by_gguf(name, raw), rtol=1e-6, atol=1e-36)


@pytest.mark.parametrize("name", ["q4_k", *in_interpreter("q6_k", "q8_0", "mxfp4")])
def test_for_many_tokens_weights_are_rounded_once(name, place):
    format = all_formats()[name]
    raw = weight_blocks(format, ROWS * 256 // format.block_weights, seed=3).reshape(ROWS, -1)
    found = product(name, packed_of(name, raw, place), eye(256, place), height=64).T
    exact = torch.from_numpy(by_gguf(name, raw).copy()).bfloat16().float().numpy()
    assert (found == exact).mean() > 0.999 and relative_error(found, exact) < 1e-4  # halfway between two numbers


@pytest.mark.parametrize("name", ["mxfp4", *in_interpreter("q4_k", "q8_0")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_activations_may_be_in_other_formats(name, dtype, place):
    format, rng = all_formats()[name], np.random.default_rng(4)
    raw = weight_blocks(format, ROWS * 256 // format.block_weights, seed=3).reshape(ROWS, -1)
    x = torch.from_numpy(rng.standard_normal((9, 256), np.float32)).to(dtype)
    found = product(name, packed_of(name, raw, place), x.to(place))
    assert relative_error(found, x.float().numpy() @ by_gguf(name, raw).T) < 1e-5


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_4_bits_in_groups_with_zeros(group, place):
    rng, columns = np.random.default_rng(group), 256
    scales = np.exp(rng.uniform(-9, -4, (ROWS, columns // group))).astype(np.float16).astype(np.float32)
    zeros = scales * rng.integers(0, 17, scales.shape).astype(np.float32)
    parts = Int4(rng.integers(0, 256, (ROWS, columns // 2), np.uint8), scales, zeros)
    name = int4_format(group)
    assert name is not None
    matrix = pack(PACKED[name], unpack_int4(*(torch.from_numpy(each).to(place) for each in parts[:3])))
    assert len(matrix) / (ROWS * columns) <= (0.54 if group >= 128 else 0.63)
    assert relative_error(product(name, matrix, eye(columns, place)).T, parts.dequantize()) < 1e-6


def test_sizes_are_those_of_the_file_or_little_more():
    for name in BLOCKED:
        format, packed = all_formats()[name], PACKED[name]
        allowed = {"q2_k": 1.77, "q3_k": 1.35, "iq4_nl": 1.9, "iq4_xs": 2.03}.get(name, 1.03)
        assert packed.num_bytes(64, 2048) <= allowed * format.bytes_for(64 * 2048), name
    assert PACKED["mxfp4"].num_bytes(2880, 2880) <= 1.023 * all_formats()["mxfp4"].bytes_for(2880 * 2880)


@pytest.mark.parametrize("name", PACKED)
def test_random_matrices_have_the_deviation_that_was_asked_for(name, place):
    matrix = pack(PACKED[name], random_unpacked(PACKED[name], (ROWS, 256), 0.02, torch.device(place)))
    numbers = product(name, matrix, eye(256, place))
    allowed = 0.35 if name == "mxfp4" else 0.1  # its scales are powers of two
    assert abs(numbers.std() / 0.02 - 1) < allowed and abs(numbers.mean()) < 0.006


def test_what_cannot_be_packed_is_an_error():
    raw = weight_blocks(all_formats()["mxfp4"], 8, seed=0)
    raw[3, 0] = 129
    with pytest.raises(CannotPack):
        unpack_blocks("mxfp4", torch.from_numpy(raw))
    assert int4_format(96) is None and int4_format(16) is None and int4_format(192) is None
    packed, ones = torch.zeros((2, 64), dtype=torch.uint8), torch.ones((2, 1))
    for point in (0.3, 40.0, -1.0):
        with pytest.raises(CannotPack):
            unpack_int4(packed, ones, point * ones)
