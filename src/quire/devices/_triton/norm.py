"""Residual add, norm and rounding to FP8 in one pass over a token; norms of groups of its numbers."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

FP8 = torch.float8_e4m3fn
FP8_MAX = tl.constexpr(448.0)
GROUP_NUMBERS = 4096  # of a program of `norm_groups`


class Norm(NamedTuple):
    """The norm of a token."""

    weight: Tensor  # float32 [dim]
    eps: float
    bias: Tensor | None = None  # float32 [dim]
    kind: Literal["rms", "layer", "none"] = "rms"


class Product(NamedTuple):
    """The result of a matrix product: `raw` times the scales of its token and of its column, if there are any.

    A product that is still to be added to a value may have an RMS norm, and a factor after that.
    """

    raw: Tensor  # [T, N]
    token_scale: Tensor | None = None  # float32 [T]
    column_scale: Tensor | None = None  # float32 [N]
    factor: float = 1.0
    post_norm: Norm | None = None


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
    x, delta, token_scale, column_scale, post, weight, bias, out, out_scale, factor, post_eps, eps,
    DIM: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr, POST: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, ROUND: tl.constexpr,
    KEEP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < DIM
    if KIND != "none":
        w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    follow(CHAINED)
    h = tl.load(x + token * STRIDE + columns, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        d = tl.load(delta + token * DIM + columns, mask=mask, other=0.0)
        d = scaled(d, token_scale, column_scale, token, columns, mask, TOKEN, COLUMN)
        if POST:
            d *= tl.rsqrt(tl.sum(d * d) / DIM + post_eps)
            d *= tl.load(post + columns, mask=mask, other=0.0)
        h += d * factor
        h = h.to(x.dtype.element_ty)
        if KEEP:
            tl.store(x + token * STRIDE + columns, h, mask=mask)
        h = h.to(tl.float32)
    if KIND != "none":
        if KIND == "layer":
            h = tl.where(mask, h - tl.sum(h) / DIM, 0.0)
        h *= tl.rsqrt(tl.sum(h * h) / DIM + eps)
        h *= w
        if BIAS:
            h += tl.load(bias + columns, mask=mask, other=0.0)
        if ROUND:
            scale = fp8_scale(tl.max(tl.abs(h)))
            tl.store(out_scale + token, scale)
            h *= 1.0 / scale
        tl.store(out + token * DIM + columns, h.to(out.dtype.element_ty), mask=mask)


def add_product(x: Tensor, delta: Product) -> None:
    """Add a product to x [T, dim], in place."""
    _launch_add_norm(x, delta, Norm(x, 0.0, kind="none"), x, x)


def add_norm(
    x: Tensor, delta: Product | None, norm: Norm, rounds: bool = False, keeps: bool = True
) -> Tensor | Rounded:  # fmt: skip
    """Add delta to x [T, dim] in place; return its norm, as FP8 if `rounds`. `keeps=False`: the sum is not stored.

    The stride between tokens of x is arbitrary.
    """
    out = torch.empty(x.shape, dtype=FP8 if rounds else x.dtype, device=x.device)
    scale = torch.empty(len(x) if rounds else 0, dtype=torch.float32, device=x.device)
    _launch_add_norm(x, delta, norm, out, scale, keeps)
    return Rounded(out, scale) if rounds else out


def _launch_add_norm(
    x: Tensor, delta: Product | None, norm: Norm, out: Tensor, scale: Tensor, keeps: bool = True
) -> None:  # fmt: skip
    tokens, dim = x.shape
    block = triton.next_power_of_2(dim)
    product = delta or Product(x)
    post, post_eps = (None, 0.0) if product.post_norm is None else product.post_norm[:2]
    scales = product.token_scale, product.column_scale
    args = (
        x, product.raw, *scales, post, norm.weight, norm.bias, out, scale, product.factor, post_eps, norm.eps,
    )  # fmt: skip
    constants = {
        "DIM": dim,
        "STRIDE": x.stride(0),
        "BLOCK": block,
        "ADD": delta is not None,
        "TOKEN": product.token_scale is not None,
        "COLUMN": product.column_scale is not None,
        "POST": post is not None,
        "KIND": norm.kind,
        "BIAS": norm.bias is not None,
        "ROUND": out.dtype == FP8,
        "KEEP": keeps,
    }
    launch(_add_norm, (tokens,), args, constants, _shape(block))


@triton.jit
def _norm_groups(
    x, weight, bias, out, eps, DIM: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
    LAYER: tl.constexpr, BIAS: tl.constexpr, WIDE_WEIGHT: tl.constexpr,
    WIDE_BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * COUNT + tl.arange(0, COUNT)[:, None]
    inside = tl.arange(0, BLOCK)[None, :]
    columns = group * GROUP + inside
    mask = (inside < GROUP) & (columns < DIM)
    follow(CHAINED)
    h = tl.load(x + token * DIM + columns, mask=mask, other=0.0).to(tl.float32)
    if LAYER:
        h = tl.where(mask, h - (tl.sum(h, 1) / GROUP)[:, None], 0.0)
    h *= tl.rsqrt(tl.sum(h * h, 1) / GROUP + eps)[:, None]
    h *= tl.load(weight + (columns if WIDE_WEIGHT else inside + group * 0), mask=mask, other=0.0)
    if BIAS:
        h += tl.load(bias + (columns if WIDE_BIAS else inside + group * 0), mask=mask, other=0.0)
    tl.store(out + token * DIM + columns, h.to(out.dtype.element_ty), mask=mask)


def norm_groups(x: Tensor, norm: Norm, group: int) -> Tensor:
    """Return the norm of each `group` adjacent numbers of x [T, dim]; weight and bias are [group] or [dim]."""
    tokens, dim = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(group)
    count = min(max(GROUP_NUMBERS // block, 1), triton.next_power_of_2(dim // group))
    constants = {
        "DIM": dim,
        "GROUP": group,
        "COUNT": count,
        "BLOCK": block,
        "LAYER": norm.kind == "layer",
        "BIAS": norm.bias is not None,
        "WIDE_WEIGHT": len(norm.weight) != group,
        "WIDE_BIAS": norm.bias is not None and len(norm.bias) != group,
    }
    grid = (tokens, triton.cdiv(dim // group, count))
    launch(_norm_groups, grid, (x, norm.weight, norm.bias, out, norm.eps), constants, _shape(block * count))
    return out


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
