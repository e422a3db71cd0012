"""Short convolution: every column is a weighted sum of its last few tokens, those of earlier steps from its state.

No output depends on another one, so all tokens are computed at once. Where every row has one token, the same program
that read a state writes the new one; else a second kernel does, when no token needs the old one any more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .elementwise import activate
from .state_work import StateRows

TOKENS, COLUMNS = 16, 128  # of a program
SHAPE = LaunchShape(4, 1)


class ConvKernel(NamedTuple):
    """What tokens are multiplied with, and an activation of the sum; empty: none."""

    weight: Tensor  # float32 [dim, taps]
    bias: Tensor | None  # float32 [dim]
    kind: str = ""


@triton.jit(do_not_specialize=["num_tokens"])  # one kernel for all numbers of tokens
def _short_conv(
    x, weight, bias, states, source, target, starts, row_of_token, saves, out, x_stride, num_tokens,
    DIM: tl.constexpr, TAPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr,
    KIND: tl.constexpr, WRITES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    is_token, is_there = token < num_tokens, (token < num_tokens) & (column < DIM)
    row = tl.load(row_of_token + token, mask=is_token, other=0)
    offset = token - tl.load(starts + row, mask=is_token, other=0)  # within its row
    slot = tl.load(source + row, mask=is_token, other=-1).to(tl.int64)
    save = tl.load(saves + token, mask=is_token, other=-1).to(tl.int64)
    to = slot
    if WRITES:
        to = tl.load(target + row, mask=is_token, other=0).to(tl.int64)
    follow(CHAINED)
    total = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        is_inside = offset >= back
        new = tl.load(x + (token - back).to(tl.int64) * x_stride + column, mask=is_there & is_inside, other=0.0)
        place = column * (TAPS - 1) + offset + tap
        old = tl.load(
            states + slot * DIM * (TAPS - 1) + place, mask=is_there & (offset < back) & (slot >= 0), other=0.0
        )
        number = tl.where(is_inside, new.to(tl.float32), old)
        total += number * tl.load(weight + column * TAPS + tap, mask=column < DIM, other=0.0)
        if tap > 0:  # a thread has read all of a state that it overwrites here
            after = column * (TAPS - 1) + tap - 1
            tl.store(states + save * DIM * (TAPS - 1) + after, number, mask=is_there & (save >= 0))
            if WRITES:
                tl.store(states + to * DIM * (TAPS - 1) + after, number, mask=is_there)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < DIM, other=0.0)
    if KIND != "":
        total = activate(total, KIND)
    tl.store(out + token.to(tl.int64) * DIM + column, total.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _write_states(
    x, states, source, target, starts, x_stride, DIM: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    is_there = (column < DIM) & (end > start)  # a row of padding may be empty
    slot, to = tl.load(source + row).to(tl.int64), tl.load(target + row).to(tl.int64)
    follow(CHAINED)
    for place in tl.static_range(TAPS - 1):
        token = end - (TAPS - 1) + place
        is_inside = token >= start
        new = tl.load(x + token.to(tl.int64) * x_stride + column, mask=is_there & is_inside, other=0.0)
        before = slot * DIM * (TAPS - 1) + column * (TAPS - 1) + place + end - start
        old = tl.load(states + before, mask=is_there & (token < start) & (slot >= 0), other=0.0)
        number = tl.where(is_inside, new.to(tl.float32), old)
        tl.store(states + to * DIM * (TAPS - 1) + column * (TAPS - 1) + place, number, mask=is_there)


def short_conv(
    x: Tensor, kernel: ConvKernel, states: Tensor, rows: StateRows, is_decode: bool
) -> Tensor:  # fmt: skip
    """Return the convolution of x [T, dim]; update the states [slots, dim, taps - 1].

    is_decode: every row has one token. The stride between tokens of x is arbitrary.
    """
    weight, bias, kind = kernel
    num_tokens, (dim, taps) = len(x), weight.shape
    out = torch.empty((num_tokens, dim), dtype=x.dtype, device=x.device)
    tokens, num_blocks = (1 if is_decode else TOKENS), triton.cdiv(dim, COLUMNS)
    args = (
        x, weight, bias, states, rows.source, rows.target, rows.starts, rows.row_of_token, rows.saves, out,
        x.stride(0), num_tokens,
    )  # fmt: skip
    constants = {
        "DIM": dim,
        "TAPS": taps,
        "TOKENS": tokens,
        "COLUMNS": COLUMNS,
        "HAS_BIAS": bias is not None,
        "KIND": kind,
        "WRITES": is_decode,
    }
    launch(_short_conv, (triton.cdiv(num_tokens, tokens), num_blocks), args, constants, SHAPE)
    if not is_decode:
        constants = {"DIM": dim, "TAPS": taps, "COLUMNS": COLUMNS}
        read = (x, states, rows.source, rows.target, rows.starts, x.stride(0))
        launch(_write_states, (len(rows.source), num_blocks), read, constants, SHAPE)
    return out
