"""Embedding lookup, also for tokens that were sampled on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch


@triton.jit
def _embed(ids, last_tokens, table, out, DIM: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    token_id = tl.load(ids + token)
    if token_id < 0:
        token_id = tl.load(last_tokens - 1 - token_id)
    mask = columns < DIM
    row = tl.load(table + token_id.to(tl.int64) * DIM + columns, mask=mask, other=0.0)
    tl.store(out + token * DIM + columns, row.to(out.dtype.element_ty), mask=mask)


def embed(ids: Tensor, last_tokens: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows of table [vocab, dim] for ids [T]; an id below 0 is the last token of entry -1 - id."""
    dim = table.shape[1]
    out = torch.empty((len(ids), dim), dtype=dtype, device=table.device)
    block = min(triton.next_power_of_2(dim), 1024)
    grid = (len(ids), triton.cdiv(dim, block))
    launch(_embed, grid, (ids, last_tokens, table, out), {"DIM": dim, "BLOCK": block}, LaunchShape(4))
    return out
