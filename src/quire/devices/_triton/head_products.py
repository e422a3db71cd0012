"""Products of each head with a matrix of its own: queries into the space of latents, and sums of latents to values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

MIN_PROGRAMS = 128  # about the processors of a large GPU
FEW_TOKENS = 16


class HeadTile(NamedTuple):
    """Tokens, columns and the step along the sums of a program."""

    tokens: int
    columns: int
    step: int
    shape: LaunchShape


def head_tile(num_tokens: int, num_heads: int, num_columns: int, dtype: torch.dtype, *, fixed: bool) -> HeadTile:
    """Return the tile of such a product. `fixed`: the same for any number of tokens, so that sums have one order."""
    if dtype.itemsize > 2:
        return HeadTile(16, 64, 32, LaunchShape(4, 2))
    if fixed:
        return HeadTile(64, 64, 64, LaunchShape(4, 3))
    if num_tokens <= FEW_TOKENS:
        columns = 64
        while columns > 16 and num_heads * triton.cdiv(num_columns, columns) < MIN_PROGRAMS:
            columns //= 2
        return HeadTile(16, columns, 128, LaunchShape(4, 3))
    return HeadTile(64, 64, 64, LaunchShape(4, 3)) if num_tokens <= 64 else HeadTile(128, 128, 64, LaunchShape(8, 3))


@triton.jit
def _multiply_heads(
    x, weight, out, num_tokens, x_stride, out_stride, SUMS: tl.constexpr,
    COLUMNS: tl.constexpr, SUM_STRIDE: tl.constexpr, COLUMN_STRIDE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, BLOCK_SUMS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    tokens = tl.program_id(2) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    places = tokens.to(tl.int64)
    is_token, is_column = tokens < num_tokens, columns < COLUMNS
    weight += head * (SUMS * COLUMNS)
    follow(CHAINED)
    total = tl.zeros([BLOCK_TOKENS, BLOCK_COLUMNS], tl.float32)
    for begin in range(0, SUMS, BLOCK_SUMS):
        at = begin + tl.arange(0, BLOCK_SUMS)
        is_there = at < SUMS
        numbers = tl.load(
            x + places[:, None] * x_stride + head * SUMS + at[None, :],
            mask=is_token[:, None] & is_there[None, :], other=0.0,
        )  # fmt: skip
        matrix = tl.load(
            weight + at[:, None] * SUM_STRIDE + columns[None, :] * COLUMN_STRIDE,
            mask=is_there[:, None] & is_column[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(numbers, matrix, total, input_precision="ieee")
    to = out + places[:, None] * out_stride + head * COLUMNS + columns[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=is_token[:, None] & is_column[None, :])


def multiply_heads(x: Tensor, weight: Tensor, *, sums_last: bool, fixed: bool) -> Tensor:
    """Multiply each head of x [T, heads * sums] with its matrix: [T, heads * columns].

    The weight is [heads, columns, sums] with `sums_last`, else [heads, sums, columns]. The stride between tokens of x
    is arbitrary.
    """
    num_heads, first, last = weight.shape
    columns, sums = (first, last) if sums_last else (last, first)
    out = torch.empty((len(x), num_heads * columns), dtype=x.dtype, device=x.device)
    tile = head_tile(len(x), num_heads, columns, x.dtype, fixed=fixed)
    constants = {
        "SUMS": sums,
        "COLUMNS": columns,
        "SUM_STRIDE": 1 if sums_last else columns,
        "COLUMN_STRIDE": sums if sums_last else 1,
        "BLOCK_TOKENS": tile.tokens,
        "BLOCK_COLUMNS": tile.columns,
        "BLOCK_SUMS": tile.step,
    }
    grid = (num_heads, triton.cdiv(columns, tile.columns), triton.cdiv(len(x), tile.tokens))
    args = (x, weight, out, len(x), x.stride(0), out.stride(0))
    launch(_multiply_heads, grid, args, constants, tile.shape)
    return out
