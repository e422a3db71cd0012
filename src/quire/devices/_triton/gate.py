"""The gated activation between the two products of a feed-forward block, with rounding to FP8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .elementwise import activate
from .norm import FP8, Product, Rounded, fp8_scale, scaled

PART = 1024  # columns of a program, unless the largest number of the whole token is needed


@triton.jit
def _gated(
    raw, token_scale, column_scale, token, columns, KIND: tl.constexpr, DIM: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr,
):  # fmt: skip
    """Return activation(gate) * up for some columns of one token; its row is gate [DIM], then up [DIM]."""
    mask = columns < DIM
    row = raw + token * (2 * DIM)
    g = tl.load(row + columns, mask=mask, other=0.0)
    u = tl.load(row + DIM + columns, mask=mask, other=0.0)
    g = scaled(g, token_scale, column_scale, token, columns, mask, TOKEN, COLUMN)
    u = scaled(u, token_scale, column_scale, token, DIM + columns, mask, TOKEN, COLUMN)
    return activate(g, KIND) * u


@triton.jit
def _gate(
    raw, token_scale, column_scale, out, KIND: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    TOKEN: tl.constexpr, COLUMN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    follow(CHAINED)
    h = _gated(raw, token_scale, column_scale, token, columns, KIND, DIM, TOKEN, COLUMN)
    tl.store(out + token * DIM + columns, h.to(out.dtype.element_ty), mask=columns < DIM)


@triton.jit
def _gate_round(
    raw, token_scale, column_scale, out, out_scale, KIND: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    TOKEN: tl.constexpr, COLUMN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    follow(CHAINED)
    h = _gated(raw, token_scale, column_scale, token, columns, KIND, DIM, TOKEN, COLUMN)
    scale = fp8_scale(tl.max(tl.abs(h)))
    tl.store(out_scale + token, scale)
    tl.store(out + token * DIM + columns, (h * (1.0 / scale)).to(out.dtype.element_ty), mask=columns < DIM)


def activate_gate(
    product: Product, kind: str, rounds: bool = False, dtype: torch.dtype | None = None
) -> Tensor | Rounded:
    """Return activation(gate) * up for a product [T, 2 * dim] that has both side by side; as FP8 if `rounds`."""
    raw, token_scale, column_scale = product.raw, product.token_scale, product.column_scale
    tokens, dim = raw.shape[0], raw.shape[1] // 2
    out = torch.empty((tokens, dim), dtype=FP8 if rounds else dtype or raw.dtype, device=raw.device)
    width = triton.next_power_of_2(dim)
    width = width if rounds else min(width, PART)
    scales = {"TOKEN": token_scale is not None, "COLUMN": column_scale is not None}
    has = {"KIND": kind, "DIM": dim, "WIDTH": width, **scales}
    if not rounds:
        grid = (tokens, triton.cdiv(dim, width))
        launch(_gate, grid, (raw, token_scale, column_scale, out), has, LaunchShape(4))
        return out
    scale = torch.empty(tokens, dtype=torch.float32, device=raw.device)
    launch(
        _gate_round,
        (tokens,),
        (raw, token_scale, column_scale, out, scale),
        has,
        LaunchShape(16 if width > 4096 else 4),
    )
    return Rounded(out, scale)
