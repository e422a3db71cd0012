"""Residual add, RMS norm and rounding to FP8 in one pass over a token."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

FP8 = torch.float8_e4m3fn
FP8_MAX = tl.constexpr(448.0)


class Product(NamedTuple):
    """The result of a matrix product: `raw` times the scales of its token and of its column, if there are any."""

    raw: Tensor  # [T, N]
    token_scale: Tensor | None = None  # float32 [T]
    column_scale: Tensor | None = None  # float32 [N]


class Rounded(NamedTuple):
    """Tokens as FP8: values [T, dim] times the scale [T] of their token."""

    values: Tensor
    scale: Tensor


@triton.jit
def scaled(x, token_scale, column_scale, token, columns, mask, TOKEN: tl.constexpr, COLUMN: tl.constexpr):
    """Return numbers of one token of a `Product`, in float32."""
    x = x.to(tl.float32)
    if TOKEN:
        x *= tl.load(token_scale + token)
    if COLUMN:
        x *= tl.load(column_scale + columns, mask=mask, other=0.0)
    return x


@triton.jit
def fp8_scale(largest):
    """Return the scale that maps `largest` to the largest FP8 number."""
    return tl.maximum(largest, 1e-12) / FP8_MAX


@triton.jit
def _add_norm(
    x, delta, token_scale, column_scale, weight, out, out_scale, eps, DIM: tl.constexpr, BLOCK: tl.constexpr,
    ADD: tl.constexpr, TOKEN: tl.constexpr, COLUMN: tl.constexpr, ROUND: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < DIM
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    follow(CHAINED)
    h = tl.load(x + token * DIM + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        d = tl.load(delta + token * DIM + columns, mask=mask, other=0.0)
        h += scaled(d, token_scale, column_scale, token, columns, mask, TOKEN, COLUMN)
        h = h.to(x.dtype.element_ty)
        tl.store(x + token * DIM + columns, h, mask=mask)
        h = h.to(tl.float32)
    h *= tl.rsqrt(tl.sum(h * h) / DIM + eps)
    h *= w
    if ROUND:
        scale = fp8_scale(tl.max(tl.abs(h)))
        tl.store(out_scale + token, scale)
        h *= 1.0 / scale
    tl.store(out + token * DIM + columns, h.to(out.dtype.element_ty), mask=mask)


def add_norm(x: Tensor, delta: Product | None, weight: Tensor, eps: float, rounds: bool = False) -> Tensor | Rounded:
    """Add delta to x [T, dim] in place; return its RMS norm times weight, as FP8 if `rounds`."""
    tokens, dim = x.shape
    out = torch.empty_like(x, dtype=FP8 if rounds else x.dtype)
    scale = torch.empty(tokens if rounds else 0, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(dim)
    product = delta or Product(x)
    args = (x, product.raw, product.token_scale, product.column_scale, weight, out, scale, eps)
    constants = {
        "DIM": dim,
        "BLOCK": block,
        "ADD": delta is not None,
        "TOKEN": product.token_scale is not None,
        "COLUMN": product.column_scale is not None,
        "ROUND": rounds,
    }
    launch(_add_norm, (tokens,), args, constants, _shape(block))
    return Rounded(out, scale) if rounds else out


@triton.jit
def _round(x, out, out_scale, DIM: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < DIM
    follow(CHAINED)
    h = tl.load(x + token * DIM + columns, mask=mask, other=0.0).to(tl.float32)
    scale = fp8_scale(tl.max(tl.abs(h)))
    tl.store(out_scale + token, scale)
    tl.store(out + token * DIM + columns, (h * (1.0 / scale)).to(out.dtype.element_ty), mask=mask)


def to_fp8(x: Tensor) -> Rounded:
    """Round x [T, dim] to FP8, with a scale per token."""
    tokens, dim = x.shape
    out = torch.empty_like(x, dtype=FP8)
    scale = torch.empty(tokens, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(dim)
    launch(_round, (tokens,), (x, out, scale), {"DIM": dim, "BLOCK": block}, _shape(block))
    return Rounded(out, scale)


def _shape(block: int) -> LaunchShape:
    """Return the shape of a program that holds a whole token in registers, sixteen numbers per thread."""
    return LaunchShape(min(max(block // 512, 1), 16))
