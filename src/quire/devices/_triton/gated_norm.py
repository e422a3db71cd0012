"""The RMS norm of groups of a token's numbers, before or after a gate."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .elementwise import activate
from .norm import GROUP_NUMBERS


class GatedNorm(NamedTuple):
    """The norm of a token's groups, and its gate."""

    weight: Tensor  # float32 [group] or [dim]
    eps: float
    group: int
    kind: str  # the activation of the gate
    gates_first: bool


@triton.jit
def _gated_norm(
    x, gate, weight, out, x_stride, gate_stride, eps, DIM: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
    BLOCK: tl.constexpr, IS_WIDE: tl.constexpr, KIND: tl.constexpr, GATES_FIRST: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * COUNT + tl.arange(0, COUNT)[:, None]
    inside = tl.arange(0, BLOCK)[None, :]
    columns = group * GROUP + inside
    mask = (inside < GROUP) & (columns < DIM)
    factor = tl.load(weight + (columns if IS_WIDE else inside + group * 0), mask=mask, other=0.0)
    follow(CHAINED)
    h = tl.load(x + token * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    share = activate(tl.load(gate + token * gate_stride + columns, mask=mask, other=0.0).to(tl.float32), KIND)
    if GATES_FIRST:
        h *= share
    h *= tl.rsqrt(tl.sum(h * h, 1) / GROUP + eps)[:, None] * factor
    if not GATES_FIRST:
        h *= share
    tl.store(out + token * DIM + columns, h.to(out.dtype.element_ty), mask=mask)


def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """Return the gated norm of x and gate, [T, dim] each. The strides between tokens are arbitrary."""
    tokens, dim = x.shape
    out = torch.empty((tokens, dim), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(norm.group)
    count = min(max(GROUP_NUMBERS // 4 // block, 1), triton.next_power_of_2(dim // norm.group))
    constants = {
        "DIM": dim,
        "GROUP": norm.group,
        "COUNT": count,
        "BLOCK": block,
        "IS_WIDE": len(norm.weight) != norm.group,
        "KIND": norm.kind,
        "GATES_FIRST": norm.gates_first,
    }
    args = (x, gate, norm.weight, out, x.stride(0), gate.stride(0), norm.eps)
    shape = LaunchShape(min(max(block * count // 512, 1), 16))
    launch(_gated_norm, (tokens, triton.cdiv(dim // norm.group, count)), args, constants, shape)
    return out
