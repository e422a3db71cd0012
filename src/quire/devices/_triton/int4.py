"""Products with weights of 4 bits that have a scale and a zero for each group of a row.

Few tokens: the weights are streamed as in stream.py, half a byte each, with the same steps around the product. A byte
holds two columns that lie `half` apart, so that both sides of a product are read as they lie. A value q becomes the
bfloat16 128 + q by setting bits, two at a time; the products with a group are summed as such, and scale, zero and the
128 are put right once for each group: weight = q * scale - zero.
Many tokens: `dequantize` writes the matrix as bfloat16, and the library multiplies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import chained, fetch, follow
from .stream import Around, Scratch, Tile, _tokens

OFFSET = tl.constexpr(128.0)  # a bfloat16 from here on has whole numbers for its last bits
LINE = tl.constexpr(128)  # bytes
HALVES = (128, 64, 32)
ROWS, WARPS = 64, 4  # of a program of `dequantize`

# Four bytes -> the four lower halves, the four upper ones: each in the low bits of a bfloat16 that is 128.
WIDEN = tl.constexpr(
    """{
    .reg .b32 a, b;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    lop3.b32 $0, a, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 $1, b, 0x000F000F, 0x43004300, 0xEA;
    shr.b32 a, a, 4;
    shr.b32 b, b, 4;
    lop3.b32 $2, a, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 $3, b, 0x000F000F, 0x43004300, 0xEA;
    }"""
)


class Int4Weight(NamedTuple):
    """A matrix [rows, columns] as the kernels here read it."""

    packed: Tensor  # uint8 [rows, columns / 2]; of 2 * half columns the first half are low, the second high bits
    scales: Tensor  # float16 [columns / group, rows], to be multiplied with the row's own
    zeros: Tensor  # the same
    row_scale: Tensor  # float32 [rows], powers of two
    group: int
    half: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.packed.shape[0], 2 * self.packed.shape[1]


def half_of(columns: int, group: int) -> int | None:
    """How far apart the columns of a byte lie. None: these kernels cannot take such groups."""
    return next((half for half in HALVES if group % half == 0 and columns % (2 * half) == 0), None)


def arrange(packed: Tensor, scales: Tensor, zeros: Tensor) -> Int4Weight:
    """From columns in their order, two in a byte, with scales and zeros float32 [rows, groups]. Groups of `half_of`."""
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    group = columns // scales.shape[1]
    half = half_of(columns, group)
    assert half is not None
    values = torch.stack([packed & 15, packed >> 4], -1).reshape(rows, -1, 2, half)
    apart = (values[:, :, 0] | (values[:, :, 1] << 4)).reshape(rows, -1)
    largest = torch.maximum(scales.abs(), zeros.abs() / 16).amax(1).clamp(min=1e-30)
    row_scale = torch.exp2(torch.ceil(torch.log2(largest)))
    small = [(each / row_scale[:, None]).t().contiguous().half() for each in (scales, zeros)]
    return Int4Weight(apart.contiguous(), small[0], small[1], row_scale, group, half)


@triton.jit
def _widen(p, NATIVE: tl.constexpr):
    """128 + the lower, 128 + the upper halves of bytes, in bfloat16."""
    if NATIVE:
        low, high = tl.inline_asm_elementwise(
            WIDEN, "=r,=r,=r,=r,r", [p], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        low = ((p & 15).to(tl.float32) + OFFSET).to(tl.bfloat16)
        high = ((p >> 4).to(tl.float32) + OFFSET).to(tl.bfloat16)
    return low, high


@triton.jit
def _add_group(acc, b, a, total, scales, zeros, at):
    """acc + the product with one group, [BN, BM]; `total` [BM] sums the tokens' columns."""
    scale = tl.load(scales + at).to(tl.float32)
    shift = tl.load(zeros + at).to(tl.float32) + OFFSET * scale
    return acc + tl.dot(b, a) * scale[:, None] - shift[:, None] * total[None, :]


@triton.jit
def _stream_int4(
    x, w, scales, zeros, row_scale, norm, bias, out, partial, arrived, M, N, eps, K: tl.constexpr,
    GROUP: tl.constexpr, HALF: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, LINES: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    BIAS: tl.constexpr, NATIVE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    share = tl.program_id(1)
    KS: tl.constexpr = K // SHARES
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last row the last one is read again, and not written
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    is_there = m < M
    k = tl.arange(0, HALF)
    wp = w + rows[:, None] * (K // 2) + share * (KS // 2) + k[None, :]
    up = N.to(tl.int64) * (K // 2)
    width = N * (2 if GATE else 1)  # of a row of scales
    if CHAINED and LINES > 0:
        ahead = w + rows[:, None] * (K // 2) + share * (KS // 2) + tl.arange(0, LINES)[None, :] * LINE
        fetch(ahead.to(tl.int64))
        if GATE:
            fetch((ahead + up).to(tl.int64))
    follow(CHAINED)
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    for start in tl.range(0, KS, 2 * HALF, num_stages=STAGES):
        first = share * KS + start
        a0, squares = _tokens(x, norm, squares, m, first + k, is_there, K, NORM)
        a1, squares = _tokens(x, norm, squares, m, first + HALF + k, is_there, K, NORM)
        total0, total1 = tl.sum(a0.to(tl.float32), 0), tl.sum(a1.to(tl.float32), 0)
        at0 = (first // GROUP).to(tl.int64) * width + rows
        at1 = ((first + HALF) // GROUP).to(tl.int64) * width + rows
        low, high = _widen(tl.load(wp + start // 2), NATIVE)
        acc = _add_group(acc, low, a0, total0, scales, zeros, at0)
        acc = _add_group(acc, high, a1, total1, scales, zeros, at1)
        if GATE:
            low, high = _widen(tl.load(wp + up + start // 2), NATIVE)
            acc_up = _add_group(acc_up, low, a0, total0, scales + N, zeros + N, at0)
            acc_up = _add_group(acc_up, high, a1, total1, scales + N, zeros + N, at1)
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
    acc *= tl.load(row_scale + rows)[:, None]
    if GATE:
        acc_up *= tl.load(row_scale + N + rows)[:, None]
    if NORM:
        rms = tl.rsqrt(squares / K + eps)
        acc *= rms[None, :]
        acc_up *= rms[None, :]
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


def stream_int4(
    x: Tensor, weight: Int4Weight, around: Around, tile: Tile, scratch: Scratch, dtype: torch.dtype | None = None
) -> Tensor:
    """bfloat16 x [M, K] times the transpose of weight [N, K], as `stream` does it. A tile has the weight's own columns.

    Shares must divide the columns into whole blocks: K % (shares * 2 * half) == 0.
    """
    tokens, columns = x.shape
    assert x.dtype == torch.bfloat16 and columns % (tile.shares * 2 * weight.half) == 0
    num_rows = weight.packed.shape[0] // (2 if around.is_gate else 1)
    out = around.add_to
    if out is None:
        out = torch.empty((tokens, num_rows), dtype=dtype or x.dtype, device=x.device)
    grid = (triton.cdiv(num_rows, tile.rows), tile.shares, triton.cdiv(tokens, tile.tokens))
    assert tile.shares == 1 or scratch.fits(grid[0] * grid[2], tile)
    _stream_int4[grid](
        x, weight.packed, weight.scales, weight.zeros, weight.row_scale, around.norm, around.bias, out,
        scratch.partial, scratch.arrived, tokens, num_rows, around.eps, K=columns, GROUP=weight.group,
        HALF=weight.half, BM=tile.tokens, BN=tile.rows, SHARES=tile.shares, STAGES=tile.stages, LINES=tile.lines,
        NORM=around.norm is not None, GATE=around.is_gate, ADD=around.add_to is not None,
        BIAS=around.bias is not None, NATIVE=x.is_cuda, num_warps=tile.warps, **chained(x),
    )  # fmt: skip
    return out


@triton.jit
def _dequantize(
    w, scales, zeros, row_scale, out, N, K: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, BN: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    is_there = n < N
    rows = tl.minimum(n, N - 1).to(tl.int64)
    first = tl.program_id(1) * 2 * HALF
    k = tl.arange(0, HALF)
    p = tl.load(w + rows[:, None] * (K // 2) + first // 2 + k[None, :])
    r = tl.load(row_scale + rows)
    at = (first // GROUP).to(tl.int64) * N + rows
    low = (p & 15).to(tl.float32) * tl.load(scales + at).to(tl.float32)[:, None]
    low = (low - tl.load(zeros + at).to(tl.float32)[:, None]) * r[:, None]
    at = ((first + HALF) // GROUP).to(tl.int64) * N + rows
    high = (p >> 4).to(tl.float32) * tl.load(scales + at).to(tl.float32)[:, None]
    high = (high - tl.load(zeros + at).to(tl.float32)[:, None]) * r[:, None]
    follow(CHAINED)
    to = out + rows[:, None] * K + first + k[None, :]
    tl.store(to, low.to(out.dtype.element_ty), mask=is_there[:, None])
    tl.store(to + HALF, high.to(out.dtype.element_ty), mask=is_there[:, None])


def dequantize(weight: Int4Weight, out: Tensor) -> Tensor:
    """The matrix in `out`, [rows, columns] or the beginning of something larger, and contiguous."""
    rows, columns = weight.shape
    out = out.reshape(-1)[: rows * columns].view(rows, columns)
    grid = (triton.cdiv(rows, ROWS), columns // (2 * weight.half))
    _dequantize[grid](
        weight.packed, weight.scales, weight.zeros, weight.row_scale, out, rows, K=columns, GROUP=weight.group,
        HALF=weight.half, BN=ROWS, num_warps=WARPS, **chained(out),
    )  # fmt: skip
    return out
