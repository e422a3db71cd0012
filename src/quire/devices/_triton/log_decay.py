"""How much a state keeps, as a logarithm: rate * softplus(x + bias), in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .scan_steps import softplus

BLOCK = 1024  # columns of a program


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
    tl.store(out + token * DIM + column, factor * softplus(number + shift), mask=mask)


def log_decay(x: Tensor, rate: Tensor, bias: Tensor) -> Tensor:
    """Return the decay of x [T, heads * n], with rate [heads] and bias [heads * n] in float32.

    The stride between tokens of x is arbitrary.
    """
    num_tokens, dim = x.shape
    out = torch.empty((num_tokens, dim), device=x.device)
    block = min(BLOCK, triton.next_power_of_2(dim))
    constants = {"DIM": dim, "EACH": dim // len(rate), "BLOCK": block}
    grid = (num_tokens, triton.cdiv(dim, block))
    launch(_log_decay, grid, (x, rate, bias, out, x.stride(0)), constants, LaunchShape(4))
    return out
