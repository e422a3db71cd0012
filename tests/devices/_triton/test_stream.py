"""Products of few tokens, with everything fused into them, against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from quire.devices._triton.norm import FP8, to_fp8
from quire.devices._triton.stream import Around, Scratch, Tile, stream
from quire.ops.elementwise import ACTIVATIONS
from quire.ops.registry import relative_error
from tests.devices.interpreted import in_interpreter

pytestmark = [pytest.mark.device]
COLUMNS, ROWS = 128, 48
TILES = [Tile(32, 32, 16, shares=2, stages=2), Tile(16, 64, 16, shares=2), Tile(32, 32, 16, stages=2)]
ON_GPU = [
    (False, False, False, True),
    (True, False, True, False),
    (False, True, True, True),
    (True, True, False, False),
]
BF16_ERROR = 2e-2
KINDS = ("silu", "gelu_tanh")  # of a gate, without and with a norm
FACTOR = 0.75  # of what is added to the residual


def expected(x, weight, norm, bias, is_gate, residual, kind="silu") -> np.ndarray:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    if norm is not None:
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * norm
    out = x @ weight.T + (0 if bias is None else bias)
    if is_gate:
        gate, up = np.split(out, 2, axis=1)
        out = ACTIVATIONS[kind](gate) * up
    return out if residual is None else out * FACTOR + residual


@pytest.mark.parametrize("tile", [TILES[0], *in_interpreter(*TILES[1:])])
@pytest.mark.parametrize("fmt", ["bf16", "fp8"])
@pytest.mark.parametrize("num_tokens", [20, *in_interpreter(1)])
def test_a_streamed_product_matches_float64(num_tokens, fmt, tile, place):
    rng = np.random.default_rng(num_tokens)
    scratch = Scratch(torch.device(place))
    for is_gate, has_norm, has_bias, adds in product((False, True), repeat=4) if place == "cpu" else ON_GPU:
        if (adds and is_gate) or (has_norm and fmt == "fp8"):
            continue  # combinations that programs do not use
        rows = 2 * ROWS if is_gate else ROWS
        x, weight = (
            rng.standard_normal((num_tokens, COLUMNS), np.float32),
            rng.standard_normal((rows, COLUMNS), np.float32),
        )
        norm = rng.standard_normal(COLUMNS, np.float32) if has_norm else None
        bias = rng.standard_normal(rows, np.float32) if has_bias else None
        residual = rng.standard_normal((num_tokens, ROWS), np.float32) if adds else None
        w, scales = torch.from_numpy(weight).to(place), None
        tokens = torch.from_numpy(x).to(place, torch.bfloat16)
        if fmt == "fp8":
            scale = w.abs().amax(1) / 448
            w = (w / scale[:, None]).to(FP8)
            weight = w.float().cpu().numpy() * scale.cpu().numpy()[:, None]
            tokens, of_tokens = to_fp8(tokens)
            x = tokens.float().cpu().numpy() * of_tokens.cpu().numpy()[:, None]
            scales = scale, of_tokens
        else:
            w = w.bfloat16()
        as_tensor = [None if each is None else torch.from_numpy(each).to(place) for each in (norm, bias, residual)]
        add_to = None if residual is None else as_tensor[2].bfloat16()
        kind = KINDS[has_norm] if is_gate else ""
        around = Around(as_tensor[0], 1e-5, as_tensor[1], is_gate, add_to, kind=kind, factor=FACTOR)
        out = stream(tokens, w, scales, around, tile, scratch, torch.bfloat16)
        error = relative_error(out.float().cpu().numpy(), expected(x, weight, norm, bias, is_gate, residual, kind))
        assert error <= BF16_ERROR
    assert not scratch.arrived.any(), "the counters are reset for the next product"


def test_the_sum_of_shares_is_always_the_same(place):
    rng, tile, scratch = np.random.default_rng(0), Tile(16, 32, 16, shares=4), Scratch(torch.device(place))
    x, w = (
        torch.from_numpy(rng.standard_normal(s, np.float32)).to(place, torch.bfloat16) for s in ((3, 128), (32, 128))
    )
    outs = [stream(x, w, None, Around(), tile, scratch, torch.bfloat16) for _ in range(3)]
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_token_does_not_depend_on_the_others(place):
    rng, tile, scratch = np.random.default_rng(0), Tile(16, 32, 16, shares=2), Scratch(torch.device(place))
    x, w = (
        torch.from_numpy(rng.standard_normal(s, np.float32)).to(place, torch.bfloat16) for s in ((16, 128), (32, 128))
    )
    together = stream(x, w, None, Around(), tile, scratch, torch.bfloat16)
    alone = stream(x[3:4].contiguous(), w, None, Around(), tile, scratch, torch.bfloat16)
    assert torch.equal(together[3:4], alone)
