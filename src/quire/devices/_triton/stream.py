"""Products of few tokens: the weights are read once, at the speed of memory, and all else is hidden behind that.

A program takes BN rows of the weight and a share of its columns; weights are the left side of the tensor cores'
product, tokens the right. The steps around a product are fused into the kernel:
    NORM   RMS norm of the tokens before: its weight is multiplied in, the root mean square is computed in the same loop
    GATE   the weight has gate rows, then up rows; the result is activation(gate) * up
    KIND   the activation, also without a gate; empty: none
    ADD    the result, times a factor, is added to `out` (the residual)
    FP8    weights are FP8 with a scale per row, tokens are FP8 with a scale per token
    AHEAD  a program that has read its weights prefetches some of those of the next product: memory stays busy while
           small kernels run in between, and the next product finds its first weights in the cache
Shares of columns are summed by the program that finishes last, in the order of the shares: the sum is always the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, fetch, follow, launch
from .elementwise import activate

LINE = 128  # bytes


class Tile(NamedTuple):
    """The tile of a product. The field names are keys on disk (cuda/tuned_table.py)."""

    rows: int  # of the weight, per program
    columns: int  # at a time
    tokens: int = 16  # per program
    shares: int = 1  # that the columns are divided into
    warps: int = 4
    stages: int = 4


@triton.jit
def _tokens(x, norm, squares, tokens, columns, end, is_there, K: tl.constexpr, NORM: tl.constexpr, CUT: tl.constexpr):
    """Return the tokens [BK, BM], and the accumulated sum of their squares. CUT: some columns are beyond the end."""
    mask = is_there[None, :]
    if CUT:
        mask = mask & (columns < end)[:, None]
    a = tl.load(x + tokens[None, :] * K + columns[:, None], mask=mask, other=0.0)
    if NORM:
        h = a.to(tl.float32)
        squares += tl.sum(h * h, 0)
        scale = tl.load(norm + columns, mask=columns < end, other=0.0) if CUT else tl.load(norm + columns)
        h *= scale.to(tl.float32)[:, None]
        a = h.to(a.dtype)
    return a, squares


@triton.jit
def _weights(at, columns, end, CUT: tl.constexpr):
    """Return weights [BN, BK]."""
    if CUT:
        return tl.load(at, mask=(columns < end)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _fetch_ahead(ahead, num_lines, LINES: tl.constexpr):
    """Prefetch this program's part of the next weights, in lines of 128 bytes."""
    program = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    line = program * LINES + tl.arange(0, LINES)
    fetch(ahead.to(tl.int64) + tl.minimum(line, num_lines - 1).to(tl.int64) * 128)


@triton.jit
def finish(
    acc, acc_up, squares, row_scale, token_scale, bias, out, partial, arrived, n, m, M, N, eps, factor, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr,
    KIND: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, ROW: tl.constexpr, TOKEN: tl.constexpr,
):  # fmt: skip
    """What follows a program's own sums [BN, BM] of rows n and tokens m, and of squares [BM]: the shares of others,
    norm, scales of rows and tokens, bias, gate and residual. The last call of a kernel: only the last program goes
    past it."""
    if SHARES > 1:
        program = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        place = (program * SHARES).to(tl.int64)
        SIZE: tl.constexpr = (2 * BN + 1) * BM
        inside = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        mine = partial + (place + tl.program_id(1)) * SIZE
        tl.store(mine + inside, acc)
        if GATE:
            tl.store(mine + BN * BM + inside, acc_up)
        if NORM:
            tl.store(mine + 2 * BN * BM + tl.arange(0, BM), squares)
        tl.debug_barrier()
        if tl.atomic_add(arrived + program, 1, sem="acq_rel") != SHARES - 1:
            return
        tl.store(arrived + program, 0)
        acc = tl.zeros([BN, BM], tl.float32)
        acc_up = tl.zeros([BN, BM], tl.float32)
        squares = tl.zeros([BM], tl.float32)
        for each in tl.static_range(SHARES):
            theirs = partial + (place + each) * SIZE
            acc += tl.load(theirs + inside, cache_modifier=".cg")
            if GATE:
                acc_up += tl.load(theirs + BN * BM + inside, cache_modifier=".cg")
            if NORM:
                squares += tl.load(theirs + 2 * BN * BM + tl.arange(0, BM), cache_modifier=".cg")
    is_there = m < M
    rows = tl.minimum(n, N - 1).to(tl.int64)
    if NORM:
        rms = tl.rsqrt(squares / K + eps)
        acc *= rms[None, :]
        acc_up *= rms[None, :]
    if ROW:
        of_token = tl.load(token_scale + m, mask=is_there, other=0.0)[None, :] if TOKEN else 1.0
        acc *= tl.load(row_scale + rows)[:, None] * of_token
        if GATE:
            acc_up *= tl.load(row_scale + N + rows)[:, None] * of_token
    if BIAS:
        acc += tl.load(bias + rows).to(tl.float32)[:, None]
        if GATE:
            acc_up += tl.load(bias + N + rows).to(tl.float32)[:, None]
    if KIND != "":
        acc = activate(acc, KIND)
    if GATE:
        acc *= acc_up
    at = m[None, :].to(tl.int64) * N + n[:, None]
    mask = is_there[None, :] & (n < N)[:, None]
    if ADD:
        acc = acc * factor + tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["M", "N", "num_lines"])
def _stream(
    x, w, scale, token_scale, norm, bias, out, partial, arrived, ahead, M, N, num_lines, eps, factor,
    BK: tl.constexpr, FP8: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, LINES: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, KIND: tl.constexpr,
    ADD: tl.constexpr, BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    share = tl.program_id(1)
    KS: tl.constexpr = K // SHARES
    CUT: tl.constexpr = KS % BK != 0
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last row the last one is read again, and not written
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    is_there = m < M
    k = tl.arange(0, BK)
    wp = w + rows[:, None] * K + share * KS + k[None, :]
    up = N.to(tl.int64) * K
    follow(CHAINED)
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    for start in tl.range(0, KS, BK, num_stages=STAGES):
        columns, end = share * KS + start + k, (share + 1) * KS
        a, squares = _tokens(x, norm, squares, m, columns, end, is_there, K, NORM, CUT)
        acc = tl.dot(_weights(wp + start, columns, end, CUT), a, acc, input_precision="ieee")
        if GATE:
            acc_up = tl.dot(_weights(wp + up + start, columns, end, CUT), a, acc_up, input_precision="ieee")
    if CHAINED and LINES > 0:
        _fetch_ahead(ahead, num_lines, LINES)
    finish(
        acc, acc_up, squares, scale, token_scale, bias, out, partial, arrived, n, m, M, N, eps, factor,
        K, BM, BN, SHARES, NORM, GATE, KIND, ADD, BIAS, FP8, FP8,
    )  # fmt: skip


class Scratch:
    """Where programs leave their shares for the last of them. One for each stream of kernels."""

    def __init__(self, device: torch.device) -> None:
        self.partial = torch.empty(1 << 23, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(1 << 13, dtype=torch.int32, device=device)

    def fits(self, num_programs: int, tile: Tile) -> bool:
        """Is there room for so many programs, each with all of its shares?"""
        size = num_programs * tile.shares * (2 * tile.rows + 1) * tile.tokens
        return size <= self.partial.numel() and num_programs <= self.arrived.numel()


class Around(NamedTuple):
    """What else the kernel does."""

    norm: Tensor | None = None  # [K]
    eps: float = 0.0
    bias: Tensor | None = None  # [rows of the weight]
    is_gate: bool = False
    add_to: Tensor | None = None  # [M, N], and the answer too
    ahead: Tensor | None = None  # weights to ask for, as bytes
    kind: str = ""  # the activation; empty: none
    factor: float = 1.0  # of what is added


class Operand(NamedTuple):
    """The weight side of a product, as its kernel takes it."""

    kernel: Any
    args: tuple[Tensor | None, ...]  # what the kernel reads of it, after the tokens
    num_rows: int  # of a gate and its up matrix together
    constants: dict[str, Any]  # that it takes before those that every such kernel has


def stream(
    x: Tensor, weight: Tensor, scales: tuple[Tensor, Tensor] | None, around: Around, tile: Tile, scratch: Scratch,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """x [M, K] times the transpose of weight [N, K] (two of them for a gate): [M, N], and what stands around it.

    Of FP8 the scales of the weight's rows [N] and of the tokens [M].
    """
    constants = {"BK": tile.columns, "FP8": scales is not None}
    operand = Operand(_stream, (weight, *(scales or (None, None))), weight.shape[0], constants)
    return stream_operand(x, operand, around, tile, scratch, dtype)


def stream_operand(
    x: Tensor, operand: Operand, around: Around, tile: Tile, scratch: Scratch, dtype: torch.dtype
) -> Tensor:
    """Launch a kernel that reads the weights once, and ends with `finish`."""
    tokens, columns = x.shape
    num_rows = operand.num_rows // (2 if around.is_gate else 1)
    out = around.add_to
    if out is None:
        out = torch.empty((tokens, num_rows), dtype=dtype, device=x.device)
    grid = (triton.cdiv(num_rows, tile.rows), tile.shares, triton.cdiv(tokens, tile.tokens))
    assert tile.shares == 1 or scratch.fits(grid[0] * grid[2], tile)
    num_lines = 0 if around.ahead is None else around.ahead.numel() // LINE
    args = (
        x, *operand.args, around.norm, around.bias, out, scratch.partial, scratch.arrived, around.ahead, tokens,
        num_rows, num_lines, around.eps, around.factor,
    )  # fmt: skip
    constants = operand.constants | {
        "K": columns,
        "BM": tile.tokens,
        "BN": tile.rows,
        "SHARES": tile.shares,
        "STAGES": tile.stages,
        "LINES": triton.next_power_of_2(triton.cdiv(num_lines, grid[0] * grid[1] * grid[2])) if num_lines else 0,
        "NORM": around.norm is not None,
        "GATE": around.is_gate,
        "KIND": around.kind,
        "ADD": around.add_to is not None,
        "BIAS": around.bias is not None,
    }
    launch(operand.kernel, grid, args, constants, LaunchShape(tile.warps))
    return out
