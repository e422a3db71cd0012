"""How much a state keeps, as a logarithm: rate * softplus(x + bias)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch

BLOCK = 1024  # columns of a program


@triton.jit
def softplus(x):
    """log(1 + exp(x)): with a series for the logarithm, which is exact near 1 too."""
    small = tl.exp(-tl.abs(x))
    z = small / (2.0 + small)  # log(1 + small) = 2 artanh(z), z <= 1/3
    square = z * z
    series = 1.0 / 9.0 + square * (1.0 / 11.0 + square * (1.0 / 13.0))
    series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square * series)))
    return tl.maximum(x, 0.0) + 2.0 * z * series


@triton.jit
def _log_decay(
    x, rate, bias, out, x_stride, DIM: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < DIM
    shift = tl.load(bias + column, mask=mask, other=0.0)
    factor = tl.load(rate + column // EACH, mask=mask, other=0.0)
    follow(CHAINED)
    number = tl.load(x + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * DIM + column, (factor * softplus(number + shift)).to(out.dtype.element_ty), mask=mask)


def log_decay(x: Tensor, rate: Tensor, bias: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the decay of x [T, heads * n], with rate [heads] and bias [heads * n] in float32.

    The stride between tokens of x is arbitrary.
    """
    num_tokens, dim = x.shape
    out = torch.empty((num_tokens, dim), dtype=dtype, device=x.device)
    block = min(BLOCK, triton.next_power_of_2(dim))
    constants = {"DIM": dim, "EACH": dim // len(rate), "BLOCK": block}
    grid = (num_tokens, triton.cdiv(dim, block))
    launch(_log_decay, grid, (x, rate, bias, out, x.stride(0)), constants, LaunchShape(4))
    return out
