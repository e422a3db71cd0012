"""The vectors of a row's tokens become one vector. Tokens are added in their order, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

BLOCK = 128  # columns of one program


def pool_tokens(x: Tensor, pools: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Pool tokens of x [T, dim] by pools [P, 3], as the op `pool` does: [P, dim]."""
    dim = x.shape[1]
    out = torch.empty((len(pools), dim), dtype=dtype, device=x.device)
    if len(pools):
        grid = (len(pools), triton.cdiv(dim, BLOCK))
        launch(_pool, grid, (x, pools, positions, out, x.stride(0)), {"DIM": dim, "BLOCK": BLOCK}, LaunchShape(4))
    return out


@triton.jit
def _pool(x, pools, positions, out, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    pool = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    follow(CHAINED)
    begin, end = tl.load(pools + 3 * pool), tl.load(pools + 3 * pool + 1)
    kind = tl.load(pools + 3 * pool + 2)  # sum, mean, weighted sum, weighted mean
    total = tl.zeros([BLOCK], tl.float32)
    weights = 0.0
    for token in range(begin, end):
        weight = tl.where(kind >= 2, tl.load(positions + token) + 1, 1).to(tl.float32)
        numbers = tl.load(x + token * stride + columns, mask=mask, other=0.0).to(tl.float32)
        total += numbers * weight
        weights += weight
    total = tl.where(kind % 2 == 1, total / weights, total)
    tl.store(out + pool.to(tl.int64) * DIM + columns, total.to(out.dtype.element_ty), mask=mask)
