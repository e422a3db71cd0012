"""The scan of Mamba-2 of long rows in chunks of up to 64 tokens, with products of matrices.

With g the sum of dt * rate from the chunk's first token on, and S the state before the chunk,

    output_i = exp(g_i) * S · c_i + sum over j <= i of (c_i · b_j) * exp(g_i - g_j) * dt_j * x_j

All exponents are at most 0. A program walks over the chunks of one row, with a part of one head's state.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import padded
from .chain import follow, launch
from .delta_chunks import SHAPE, chunk_tokens, kept_between, tile
from .log_decay import softplus
from .scan_steps import ScanInputs, StateScan
from .state_work import StateRows

LINES = 64  # of a head's state, in a program


@triton.jit
def _scan_chunks(
    x, dt, b, c, rate, bias, skip, states, source, target, saves, chunks, scans, out, x_stride, dt_stride, b_stride,
    c_stride, low, high, HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr,
    GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SKIP: tl.constexpr, LINES: tl.constexpr,
    PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    head, scan = tl.program_id(1), tl.program_id(0)
    row, first, last = tl.load(scans + 3 * scan), tl.load(scans + 3 * scan + 1), tl.load(scans + 3 * scan + 2)
    line = tl.program_id(2) * LINES + tl.arange(0, LINES)
    number = tl.arange(0, SIZE_PADDED)
    is_line = line < DIM
    is_there = is_line[:, None] & (number < SIZE)[None, :]
    place = (head * DIM + line)[:, None] * SIZE + number[None, :]
    slot, to = tl.load(source + row).to(tl.int64), tl.load(target + row).to(tl.int64)
    state = tl.load(states + slot * HEADS * DIM * SIZE + place, mask=is_there & (slot >= 0), other=0.0)
    one_rate = tl.load(rate + head)
    follow(CHAINED)
    for item in range(first, last):
        token, is_token, end = chunk_tokens(chunks, item)
        is_cell = is_token[:, None] & is_line[None, :]
        numbers = tl.load(x + token[:, None] * x_stride + head * DIM + line[None, :], mask=is_cell, other=0.0)
        of_b = tile(b, token, is_token, b_stride, head // GROUP * SIZE, SIZE, SIZE_PADDED)
        of_c = tile(c, token, is_token, c_stride, head // GROUP * SIZE, SIZE, SIZE_PADDED)
        step = tl.load(dt + token * dt_stride + head, mask=is_token, other=0.0).to(tl.float32)
        if HAS_BIAS:
            step += tl.load(bias + head)
        step = tl.where(is_token, tl.minimum(tl.maximum(softplus(step), low), high), 0.0)
        rates = step * one_rate
        score = tl.dot(of_c, tl.trans(of_b), input_precision=PRECISION)
        score *= kept_between(rates) * step[None, :]
        rounded = tl.trans(state.to(of_c.dtype))
        answer = tl.dot(of_c, rounded, input_precision=PRECISION) * tl.exp(tl.cumsum(rates, 0))[:, None]
        answer = tl.dot(score.to(numbers.dtype), numbers, answer, input_precision=PRECISION)
        if HAS_SKIP:
            answer += numbers * tl.load(skip + head)
        to_out = out + token[:, None] * HEADS * DIM + head * DIM + line[None, :]
        tl.store(to_out, answer.to(out.dtype.element_ty), mask=is_cell)
        left = numbers * (step * tl.exp(tl.cumsum(rates, 0, reverse=True) - rates))[:, None]
        left = tl.trans(left.to(of_b.dtype))
        state = tl.dot(left, of_b, state * tl.exp(tl.sum(rates)), input_precision=PRECISION)
        save = tl.load(saves + end - 1).to(tl.int64)
        if save >= 0:
            tl.store(states + save * HEADS * DIM * SIZE + place, state, mask=is_there)
    tl.store(states + to * HEADS * DIM * SIZE + place, state, mask=is_there)


def scan_chunks(tokens: ScanInputs, scan: StateScan, states: Tensor, rows: StateRows, out: Tensor) -> None:
    """Compute the rows that are cut into chunks into `out` [T, heads * dim].

    states: float32 [slots, heads, dim, size].
    """
    lines = min(LINES, padded(scan.dim))
    constants: dict[str, Any] = scan.constants | {
        "SIZE_PADDED": padded(scan.size),
        "LINES": lines,
        "PRECISION": "ieee" if out.dtype == torch.float32 else "tf32",
    }
    args = (
        *tokens, scan.rate, scan.bias, scan.skip, states, rows.source, rows.target, rows.saves, rows.chunks, rows.scans,
        out, *tokens.strides, scan.low, scan.high,
    )  # fmt: skip
    grid = (len(rows.scans), scan.heads, triton.cdiv(scan.dim, lines))
    launch(_scan_chunks, grid, args, constants, SHAPE)
