"""Rows of a table: of tokens, also of those that were sampled on the device, and of positions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch


@triton.jit
def _embed(
    ids, last_tokens, table, out, factor, offset, num_rows, DIM: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    row = tl.load(ids + token)
    if row < 0:
        row = tl.load(last_tokens - 1 - row)
    row = tl.minimum(row + offset, num_rows - 1).to(tl.int64)  # a step that only warms up has positions beyond the last
    mask = columns < DIM
    numbers = tl.load(table + row * DIM + columns, mask=mask, other=0.0).to(tl.float32) * factor
    tl.store(out + token * DIM + columns, numbers.to(out.dtype.element_ty), mask=mask)


def embed(ids: Tensor, last_tokens: Tensor, table: Tensor, factor: float = 1.0) -> Tensor:
    """Return the rows of table [vocab, dim] for ids [T], times a factor; an id below 0 is the last token of entry
    -1 - id."""
    return _rows(ids, last_tokens, table, factor, 0)


def embed_positions(positions: Tensor, table: Tensor, offset: int) -> Tensor:
    """Return the rows of table [num_positions, dim] for positions [T] + offset."""
    return _rows(positions, positions, table, 1.0, offset)


def _rows(ids: Tensor, last_tokens: Tensor, table: Tensor, factor: float, offset: int) -> Tensor:
    num_rows, dim = table.shape
    out = torch.empty((len(ids), dim), dtype=table.dtype, device=table.device)
    block = min(triton.next_power_of_2(dim), 1024)
    grid = (len(ids), triton.cdiv(dim, block))
    args = (ids, last_tokens, table, out, factor, offset, num_rows)
    launch(_embed, grid, args, {"DIM": dim, "BLOCK": block}, LaunchShape(4))
    return out
