"""The scan of Mamba and Mamba-2 token by token: a program holds the states of some channels while it reads a row."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .log_decay import softplus
from .state_work import StateRows

NUMBERS = 4096  # of states, in a program


class ScanInputs(NamedTuple):
    """The tokens of a step. The strides between tokens are arbitrary."""

    x: Tensor  # [T, heads * dim]
    dt: Tensor  # [T, heads]
    b: Tensor  # [T, groups * size]
    c: Tensor

    @property
    def strides(self) -> tuple[int, ...]:
        """Between tokens."""
        return tuple(each.stride(0) for each in self)


class StateScan(NamedTuple):
    """The sizes and weights of a layer."""

    heads: int
    dim: int
    size: int
    groups: int  # of b and c
    rate: Tensor  # float32 [heads], or [heads, size]
    bias: Tensor | None  # float32 [heads]
    skip: Tensor | None  # float32 [heads]
    low: float = 0.0
    high: float = float("inf")

    @property
    def has_chunks(self) -> bool:
        """Can it be computed in chunks? Then all numbers of a head's state are kept to the same part."""
        return self.rate.dim() == 1

    @property
    def constants(self) -> dict[str, int]:
        """What kernels are compiled for."""
        return {
            "HEADS": self.heads,
            "DIM": self.dim,
            "SIZE": self.size,
            "SIZE_PADDED": triton.next_power_of_2(self.size),
            "GROUP": self.heads // self.groups,
            "HAS_BIAS": self.bias is not None,
            "HAS_SKIP": self.skip is not None,
        }


@triton.jit
def _scan_steps(
    x, dt, b, c, rate, bias, skip, states, source, target, starts, saves, out, x_stride, dt_stride, b_stride, c_stride,
    low, high, longest, HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr,
    GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SKIP: tl.constexpr, CHANNELS: tl.constexpr,
    IS_ONE_GROUP: tl.constexpr, HAS_RATES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    number = tl.arange(0, SIZE_PADDED)
    is_channel, is_number = channel < HEADS * DIM, number < SIZE
    is_there = is_channel[:, None] & is_number[None, :]
    head = channel // DIM
    place = channel[:, None] * SIZE + number[None, :]
    if HAS_RATES:
        rates = tl.load(rate + head[:, None] * SIZE + number[None, :], mask=is_there, other=0.0)
    else:
        rates = tl.load(rate + head, mask=is_channel, other=0.0)[:, None]
    start, end = tl.load(starts + row).to(tl.int64), tl.load(starts + row + 1).to(tl.int64)
    slot, to = tl.load(source + row).to(tl.int64), tl.load(target + row).to(tl.int64)
    is_mine = (end > start) & (end - start <= longest)  # padding may be empty; longer rows are cut into chunks
    # no kernel of this step wrote it: it is read while the kernel before ends
    state = tl.load(states + slot * HEADS * DIM * SIZE + place, mask=is_there & (slot >= 0) & is_mine, other=0.0)
    follow(CHAINED)
    if is_mine:
        if IS_ONE_GROUP:
            line, is_line = (tl.program_id(1) * CHANNELS // DIM // GROUP * SIZE + number)[None, :], is_number[None, :]
        else:
            line, is_line = (head // GROUP * SIZE)[:, None] + number[None, :], is_there
        for token in range(start, end):
            one = tl.load(x + token * x_stride + channel, mask=is_channel, other=0.0).to(tl.float32)
            step = tl.load(dt + token * dt_stride + head, mask=is_channel, other=0.0).to(tl.float32)
            of_b = tl.load(b + token * b_stride + line, mask=is_line, other=0.0).to(tl.float32)
            of_c = tl.load(c + token * c_stride + line, mask=is_line, other=0.0).to(tl.float32)
            if HAS_BIAS:
                step += tl.load(bias + head, mask=is_channel, other=0.0)
            step = tl.minimum(tl.maximum(softplus(step), low), high)
            state = state * tl.exp(step[:, None] * rates) + (step * one)[:, None] * of_b
            answer = tl.sum(state * of_c, 1)
            if HAS_SKIP:
                answer += tl.load(skip + head, mask=is_channel, other=0.0) * one
            tl.store(out + token * HEADS * DIM + channel, answer.to(out.dtype.element_ty), mask=is_channel)
            save = tl.load(saves + token).to(tl.int64)
            if save >= 0:
                tl.store(states + save * HEADS * DIM * SIZE + place, state, mask=is_there)
        tl.store(states + to * HEADS * DIM * SIZE + place, state, mask=is_there)


def scan_steps(tokens: ScanInputs, scan: StateScan, states: Tensor, rows: StateRows, out: Tensor, longest: int) -> None:
    """Compute the rows of up to `longest` tokens into `out` [T, heads * dim].

    states: float32 [slots, heads, dim, size].
    """
    constants = scan.constants
    num_channels = scan.heads * scan.dim
    channels = min(max(NUMBERS // constants["SIZE_PADDED"], 1), triton.next_power_of_2(num_channels))
    constants |= {
        "CHANNELS": channels,
        "IS_ONE_GROUP": scan.groups == 1 or scan.dim * constants["GROUP"] % channels == 0,
        "HAS_RATES": not scan.has_chunks,
    }
    args = (
        *tokens, scan.rate, scan.bias, scan.skip, states, rows.source, rows.target, rows.starts, rows.saves, out,
        *tokens.strides, scan.low, scan.high, longest,
    )  # fmt: skip
    warps = min(max(channels * constants["SIZE_PADDED"] // 512, 1), 8)
    launch(_scan_steps, (len(rows.source), triton.cdiv(num_channels, channels)), args, constants, LaunchShape(warps, 1))
