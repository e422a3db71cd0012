"""Ops that depend on a token's position: rope, and a factor. Tables hold the numbers of every position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .rope import RopeTables

NUMBERS = 2048  # that a program rotates


@triton.jit
def _rotate(
    x, cos, sin, positions, out, DIM: tl.constexpr, HEADS: tl.constexpr, STRIDE: tl.constexpr, PAIRS: tl.constexpr,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * COUNT + tl.arange(0, COUNT)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    position = tl.load(positions + token)
    turns = i < 2 * PAIRS
    if INTERLEAVED:
        pair, other, is_first = i // 2, i ^ 1, i % 2 == 0
    else:
        is_first = i < PAIRS
        pair, other = tl.where(is_first, i, i - PAIRS), tl.where(is_first, i + PAIRS, i - PAIRS)
    c = tl.load(cos + position * PAIRS + pair, mask=turns, other=1.0)
    s = tl.load(sin + position * PAIRS + pair, mask=turns, other=0.0)
    s = tl.where(is_first, -s, s)
    row = token * STRIDE + head * DIM
    mask = (head < HEADS) & (i < DIM)
    follow(CHAINED)
    a = tl.load(x + row + i, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + row + other, mask=mask & turns, other=0.0).to(tl.float32)
    tl.store(out + token * (HEADS * DIM) + head * DIM + i, (a * c + b * s).to(out.dtype.element_ty), mask=mask)


def rotate_heads(x: Tensor, turns: RopeTables, positions: Tensor, head_dim: int) -> Tensor:
    """Return x [T, heads * head_dim] with every head rotated by its token's position [T].

    The stride between tokens of x is arbitrary.
    """
    tokens, dim = x.shape
    out = torch.empty((tokens, dim), dtype=x.dtype, device=x.device)
    heads, block = dim // head_dim, triton.next_power_of_2(head_dim)
    count = min(max(NUMBERS // block, 1), triton.next_power_of_2(heads))
    constants = {
        "DIM": head_dim,
        "HEADS": heads,
        "STRIDE": x.stride(0),
        "PAIRS": turns.cos.shape[1],
        "COUNT": count,
        "BLOCK": block,
        "INTERLEAVED": turns.interleaved,
    }
    args = (x, turns.cos, turns.sin, positions, out)
    launch(_rotate, (tokens, triton.cdiv(heads, count)), args, constants, LaunchShape(4))
    return out


@triton.jit
def _scale_by_position(x, factors, positions, out, DIM: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    factor = tl.load(factors + tl.load(positions + token))
    follow(CHAINED)
    v = tl.load(x + token * DIM + columns, mask=mask, other=0.0).to(tl.float32) * factor
    tl.store(out + token * DIM + columns, v.to(out.dtype.element_ty), mask=mask)


def scale_by_position(x: Tensor, factors: Tensor, positions: Tensor) -> Tensor:
    """Return x [T, dim] times the factor of its token's position; factors are float32 [positions]."""
    tokens, dim = x.shape
    out = torch.empty_like(x)
    block = min(triton.next_power_of_2(dim), 1024)
    grid = (tokens, triton.cdiv(dim, block))
    launch(_scale_by_position, grid, (x, factors, positions, out), {"DIM": dim, "BLOCK": block}, LaunchShape(4))
    return out
