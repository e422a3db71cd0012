"""The vectors of a row's tokens become one vector. Tokens are added in their order, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

BLOCK = 128  # columns of one program
AHEAD = 8  # tokens that are loaded at once


def pool_tokens(x: Tensor, pools: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Pool tokens of x [T, dim] by pools [P, 3], as the op `pool` does: [P, dim]."""
    dim = x.shape[1]
    out = torch.empty((len(pools), dim), dtype=dtype, device=x.device)
    if len(pools):
        grid = (len(pools), triton.cdiv(dim, BLOCK))
        launch(
            _pool,
            grid,
            (x, pools, positions, out, x.stride(0)),
            {"DIM": dim, "BLOCK": BLOCK, "AHEAD": AHEAD},
            LaunchShape(4),
        )
    return out


@triton.jit
def _pool(
    x, pools, positions, out, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    pool = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    follow(CHAINED)
    begin, end = tl.load(pools + 3 * pool), tl.load(pools + 3 * pool + 1)
    kind = tl.load(pools + 3 * pool + 2)  # sum, mean, weighted sum, weighted mean
    total = tl.zeros([BLOCK], tl.float32)
    weights = 0.0
    for first in range(begin, end, AHEAD):
        for step in tl.static_range(AHEAD):  # a token beyond the last has weight 0
            token = first + step
            is_there = token < end
            position = tl.load(positions + token, mask=is_there, other=0)
            weight = tl.where(is_there, tl.where(kind >= 2, position + 1, 1), 0).to(tl.float32)
            numbers = tl.load(x + token.to(tl.int64) * stride + columns, mask=mask & is_there, other=0.0)
            total += numbers.to(tl.float32) * weight
            weights += weight
    total = tl.where(kind % 2 == 1, total / weights, total)
    tl.store(out + pool.to(tl.int64) * DIM + columns, total.to(out.dtype.element_ty), mask=mask)
