"""Products with 4-bit weights, with everything fused into them, against float64 over the dequantized weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.devices._triton.int4 import Int4Weight, arrange, dequantize, span_of, stream_int4
from quire.devices._triton.stream import Around, Scratch, Tile
from quire.ops.registry import relative_error
from quire.quant.int4 import Int4
from tests.devices._triton.test_stream import FACTOR, expected
from tests.devices.interpreted import in_interpreter

pytestmark = [pytest.mark.device]
COLUMNS, ROWS = 512, 24
# tile, tokens, group, whether zeros are integers, (is a gate, has a norm, has a bias, is added to a residual)
CASES = [
    (Tile(32, 0, 16, shares=1, stages=2), 1, 64, True, (False, False, False, False)),
    (Tile(16, 0, 16, shares=2, stages=2), 20, 32, False, (False, True, True, True)),
    (Tile(32, 0, 16, shares=2), 3, 128, True, (True, True, True, False)),
    (Tile(32, 0, 16, shares=1, stages=2), 3, 256, False, (True, True, False, False)),
    (Tile(32, 0, 16, shares=1, stages=2), 5, 512, True, (False, False, True, True)),
    (Tile(32, 0, 16, shares=4, stages=2), 5, 16, True, (True, False, False, False)),
]
BF16_ERROR = 2e-2


def make(rows: int, columns: int, group: int, seed: int, whole: bool = True) -> Int4:
    """Make a matrix with scales of very different sizes, and zeros that are integers or not."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.uniform(-9, -4, (rows, columns // group))).astype(np.float16).astype(np.float32)
    values = rng.integers(0, 16, scales.shape) if whole else rng.uniform(0, 16, scales.shape)
    zeros = scales * values.astype(np.float32)
    return Int4(rng.integers(0, 256, (rows, columns // 2), np.uint8), scales, zeros)


def placed(parts: Int4, place: str) -> Int4Weight:
    return arrange(*(torch.from_numpy(each).to(place) for each in parts[:3]))


@pytest.mark.parametrize("case", [1, 2, *in_interpreter(0, 3, 4, 5)])
def test_a_streamed_product_equals_that_of_the_dequantized_weights(case, place):
    tile, num_tokens, group, whole, around = CASES[case]
    rng, scratch = np.random.default_rng(num_tokens), Scratch(torch.device(place))
    is_gate, has_norm, has_bias, adds = around
    parts = make(2 * ROWS if is_gate else ROWS, COLUMNS, group, group, whole)
    x = torch.from_numpy(rng.standard_normal((num_tokens, COLUMNS), np.float32)).bfloat16()
    norm = rng.standard_normal(COLUMNS, np.float32) if has_norm else None
    bias = rng.standard_normal(len(parts.packed), np.float32) if has_bias else None
    residual = rng.standard_normal((num_tokens, ROWS), np.float32) if adds else None
    on_device = [None if each is None else torch.from_numpy(each).to(place) for each in (norm, bias, residual)]
    add_to = None if residual is None else on_device[2].bfloat16()
    weight = placed(parts, place)
    assert (weight.points is not None) == whole
    exact = expected(x.float().numpy(), parts.dequantize(), norm, bias, is_gate, residual)
    kind = "silu" if is_gate else ""
    around = Around(on_device[0], 1e-5, on_device[1], is_gate, add_to, kind=kind, factor=FACTOR)
    out = stream_int4(x.to(place), weight, around, tile, scratch, torch.bfloat16).float().cpu().numpy()
    assert relative_error(out, exact) <= BF16_ERROR
    assert not scratch.arrived.any(), "the counters are reset for the next product"


@pytest.mark.parametrize("group", [64, *in_interpreter(16, 128, 512)])
def test_a_matrix_can_be_dequantized_to_bfloat16(group, place):
    parts = make(ROWS, COLUMNS, group, seed=1)
    weight = placed(parts, place)
    assert weight.shape == (ROWS, COLUMNS)
    buffer = torch.empty(ROWS * COLUMNS + 100, dtype=torch.bfloat16, device=place)
    out = dequantize(weight, buffer).float().cpu().numpy()
    numbers = parts.dequantize()
    # zeros have 11 bits: where a weight is nearly zero, their error dominates
    allowed = 2.0**-8 * np.abs(numbers) + 2.0**-11 * np.abs(parts.zeros.repeat(group, 1))
    assert out.shape == numbers.shape and (np.abs(out - numbers) <= allowed).all()


def test_rows_of_zeros_and_tiny_scales_are_dequantized(place):
    parts = make(ROWS, COLUMNS, 128, seed=2)
    parts.scales[0], parts.zeros[0] = 0, 0
    parts.scales[1] *= np.float32(1e-7)  # far below what float16 holds
    parts.zeros[1] *= np.float32(1e-7)
    parts.scales[2], parts.zeros[2] = 0, -3  # a row of one number
    out = dequantize(placed(parts, place), torch.empty(ROWS * COLUMNS, dtype=torch.bfloat16, device=place))
    out, numbers = out.float().cpu().numpy(), parts.dequantize()
    assert not out[0].any() and (out[2] == 3).all()
    assert relative_error(out[1], numbers[1]) < 1e-2


def test_unsupported_group_sizes_have_no_span():
    assert span_of(4096, 128) == 32 and span_of(4096, 32) == 32 and span_of(4096, 4096) == 32
    assert span_of(4096, 16) == 16 and span_of(128, 128) == 16
    assert span_of(4096, 8) is None and span_of(96, 32) is None and span_of(1536, 96) is None


def test_a_token_does_not_depend_on_the_others(place):
    parts, tile, scratch = make(ROWS, COLUMNS, 64, seed=3), Tile(32, 0, 16, shares=2), Scratch(torch.device(place))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((16, COLUMNS), np.float32)).bfloat16().to(place)
    together = stream_int4(x, placed(parts, place), Around(), tile, scratch, torch.bfloat16)
    alone = stream_int4(x[3:4].contiguous(), placed(parts, place), Around(), tile, scratch, torch.bfloat16)
    assert torch.equal(together[3:4], alone)
