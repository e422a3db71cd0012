"""Products of one token: no tensor cores, a dot product for each row of the weight.

What stands around the product is what stream.py has; FP8 weights are multiplied with the token as it is, unrounded. A
program takes few rows and all columns, so there is nothing to be summed between programs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import Shape, follow, launch
from .stream import Around


class Strip(NamedTuple):
    """How a product is divided."""

    rows: int  # of the weight, of one program
    columns: int  # at a time
    warps: int = 4


@triton.jit
def _part(at, column, K: tl.constexpr, BK: tl.constexpr):
    """Some columns, in float32; those beyond the last are 0."""
    if K % BK == 0:
        return tl.load(at).to(tl.float32)
    return tl.load(at, mask=column < K, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["N"])
def _single(
    x, w, scale, norm, bias, out, N, eps, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr,
    GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, FP8: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last row the last one is read again, and not written
    k = tl.arange(0, BK)
    wp = w + rows[:, None] * K + k[None, :]
    up = N.to(tl.int64) * K
    follow(CHAINED)
    acc = tl.zeros([BN, BK], tl.float32)
    acc_up = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for start in tl.range(0, K, BK, loop_unroll_factor=4):
        h = _part(x + start + k, start + k, K, BK)
        if NORM:
            squares += h * h
            h *= _part(norm + start + k, start + k, K, BK)
        column = start + k[None, :]
        acc += _part(wp + start, column, K, BK) * h[None, :]
        if GATE:
            acc_up += _part(wp + up + start, column, K, BK) * h[None, :]
    y = tl.sum(acc, 1)
    u = tl.sum(acc_up, 1) if GATE else y
    if NORM:
        rms = tl.rsqrt(tl.sum(squares) / K + eps)
        y *= rms
        u *= rms
    if FP8:
        y *= tl.load(scale + rows)
        if GATE:
            u *= tl.load(scale + N + rows)
    if BIAS:
        y += tl.load(bias + rows).to(tl.float32)
        if GATE:
            u += tl.load(bias + N + rows).to(tl.float32)
    if GATE:
        y = y * tl.sigmoid(y) * u
    if ADD:
        y += tl.load(out + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=n < N)


def single(
    x: Tensor, weight: Tensor, scale: Tensor | None, around: Around, strip: Strip, dtype: torch.dtype
) -> Tensor:
    """x [1, K] times the transpose of weight [N, K] (two of them for a gate): [1, N], and what stands around it."""
    columns = x.shape[1]
    num_rows = weight.shape[0] // (2 if around.is_gate else 1)
    out = around.add_to
    if out is None:
        out = torch.empty((1, num_rows), dtype=dtype, device=x.device)
    args = (x, weight, scale, around.norm, around.bias, out, num_rows, around.eps)
    constants = {
        "K": columns,
        "BN": strip.rows,
        "BK": min(strip.columns, triton.next_power_of_2(columns)),
        "NORM": around.norm is not None,
        "GATE": around.is_gate,
        "ADD": around.add_to is not None,
        "BIAS": around.bias is not None,
        "FP8": scale is not None,
    }
    launch(_single, (triton.cdiv(num_rows, strip.rows),), args, constants, Shape(strip.warps))
    return out
