"""Products of few tokens: the weights are read once, as fast as memory gives them, and all else hides behind that.

A program takes BN rows of the weight and a share of its columns; weights are the left side of the tensor cores' product,
tokens the right. What a step does around a product happens in the same kernel:
    NORM   RMS norm of the tokens before: their weight is multiplied in, the root mean square comes out of the same loop
    GATE   the weight has gate rows, then up rows; answers silu(gate) * up
    ADD    answers go on top of what is there (the residual)
    FP8    weights are FP8 with a scale for each row; tokens are rounded to FP8 in groups of BK columns
Shares of columns are summed by the program that comes last, in the order of the shares: the sum is always the same.
Weights of the first columns are fetched while the kernel before still runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import chained, fetch, follow
from .norm import fp8_scale

LINE = tl.constexpr(128)  # bytes


class Tile(NamedTuple):
    """How a product is divided."""

    rows: int  # of the weight, of one program
    columns: int  # at a time
    tokens: int = 16  # of one program
    shares: int = 1  # of all columns
    warps: int = 4
    stages: int = 4
    lines: int = 0  # of each row, fetched ahead


@triton.jit
def _tokens(x, norm, squares, tokens, columns, is_there, K: tl.constexpr, NORM: tl.constexpr):
    """[BK, BM] of the tokens, and the sum of their squares so far."""
    a = tl.load(x + tokens[None, :] * K + columns[:, None], mask=is_there[None, :], other=0.0)
    if NORM:
        h = a.to(tl.float32)
        squares += tl.sum(h * h, 0)
        h *= tl.load(norm + columns).to(tl.float32)[:, None]
        a = h.to(a.dtype)
    return a, squares


@triton.jit
def _fetch_ahead(w, rows, first, K: tl.constexpr, LINES: tl.constexpr):
    per_line: tl.constexpr = LINE * 8 // w.dtype.element_ty.primitive_bitwidth
    at = rows[:, None] * K + first + tl.arange(0, LINES)[None, :] * per_line
    fetch((w + at).to(tl.int64))


@triton.jit
def _stream(
    x, w, scale, norm, bias, out, partial, arrived, M, N, eps, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SHARES: tl.constexpr, STAGES: tl.constexpr,
    LINES: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    FP8: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    share = tl.program_id(1)
    KS: tl.constexpr = K // SHARES
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last row the last one is read again, and not written
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    is_there = m < M
    k = tl.arange(0, BK)
    wp = w + rows[:, None] * K + share * KS + k[None, :]
    up = N.to(tl.int64) * K
    if CHAINED and LINES > 0:
        _fetch_ahead(w, rows, share * KS, K, LINES)
        if GATE:
            _fetch_ahead(w + up, rows, share * KS, K, LINES)
    follow(CHAINED)
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    for start in tl.range(0, KS, BK, num_stages=STAGES):
        a, squares = _tokens(x, norm, squares, m, share * KS + start + k, is_there, K, NORM)
        b = tl.load(wp + start)
        if FP8:
            h = a.to(tl.float32)
            token_scale = fp8_scale(tl.max(tl.abs(h), 0))
            a8 = (h / token_scale[None, :]).to(w.dtype.element_ty)
            acc += tl.dot(b, a8) * token_scale[None, :]
            if GATE:
                acc_up += tl.dot(tl.load(wp + up + start), a8) * token_scale[None, :]
        else:
            acc = tl.dot(b, a, acc)
            if GATE:
                acc_up = tl.dot(tl.load(wp + up + start), a, acc_up)
    if SHARES > 1:
        place = ((tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)) * SHARES).to(tl.int64)
        SIZE: tl.constexpr = (2 * BN + 1) * BM
        inside = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        mine = partial + (place + share) * SIZE
        tl.store(mine + inside, acc)
        if GATE:
            tl.store(mine + BN * BM + inside, acc_up)
        if NORM:
            tl.store(mine + 2 * BN * BM + tl.arange(0, BM), squares)
        tl.debug_barrier()
        counter = arrived + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1, sem="acq_rel") != SHARES - 1:
            return
        tl.store(counter, 0)
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
    if NORM:
        rms = tl.rsqrt(squares / K + eps)
        acc *= rms[None, :]
        acc_up *= rms[None, :]
    if FP8:
        acc *= tl.load(scale + rows)[:, None]
        if GATE:
            acc_up *= tl.load(scale + N + rows)[:, None]
    if BIAS:
        acc += tl.load(bias + rows).to(tl.float32)[:, None]
        if GATE:
            acc_up += tl.load(bias + N + rows).to(tl.float32)[:, None]
    if GATE:
        acc = acc * tl.sigmoid(acc) * acc_up
    at = m[None, :].to(tl.int64) * N + n[:, None]
    mask = is_there[None, :] & (n < N)[:, None]
    if ADD:
        acc += tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


class Scratch:
    """Where programs leave their shares for the last of them. One for each stream of kernels; it grows as needed."""

    def __init__(self, device: torch.device) -> None:
        self.partial = torch.empty(1 << 22, dtype=torch.float32, device=device)
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


def stream(
    x: Tensor, weight: Tensor, scale: Tensor | None, around: Around, tile: Tile, scratch: Scratch,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """x [M, K] times the transpose of weight [N, K] (two of them for a gate): [M, N], and what stands around it."""
    tokens, columns = x.shape
    num_rows = weight.shape[0] // (2 if around.is_gate else 1)
    out = around.add_to
    if out is None:
        out = torch.empty((tokens, num_rows), dtype=dtype or x.dtype, device=x.device)
    grid = (triton.cdiv(num_rows, tile.rows), tile.shares, triton.cdiv(tokens, tile.tokens))
    assert tile.shares == 1 or scratch.fits(grid[0] * grid[2], tile)
    _stream[grid](
        x, weight, scale, around.norm, around.bias, out, scratch.partial, scratch.arrived, tokens, num_rows,
        around.eps, K=columns, BM=tile.tokens, BN=tile.rows, BK=tile.columns, SHARES=tile.shares, STAGES=tile.stages,
        LINES=tile.lines, NORM=around.norm is not None, GATE=around.is_gate, ADD=around.add_to is not None,
        BIAS=around.bias is not None, FP8=scale is not None, num_warps=tile.warps, **chained(x),
    )  # fmt: skip
    return out
