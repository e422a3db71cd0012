"""Products with 4-bit weights that have a scale and a zero for each group of a row.

Few tokens: the weights are streamed as in stream.py, half a byte each, with the same fused steps. A word holds eight
columns that are `span` apart, so the i-th values of neighbouring words are neighbouring columns: both sides of a
product are read in memory order, without shuffles. A value q becomes the bfloat16 128 + q by setting bits, two at a
time. If zeros are integers (AWQ, GPTQ), 128 + zero is subtracted, which is exact, and the products of a group are
summed and scaled. Otherwise they are summed as they are, and zero and the 128 are subtracted once per group, using the
sum of the tokens' numbers.
Many tokens: `dequantize` writes the matrix as bfloat16, and the library multiplies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .stream import Around, Operand, Scratch, Tile, _fetch_ahead, finish, stream_operand

OFFSET = tl.constexpr(128.0)  # from here on, the last bits of a bfloat16 are integers
SPANS = (32, 16)
PER_WORD = tl.constexpr(8)
INTEGER_TOLERANCE = 1e-3  # zeros this close to an integer count as integers: scales were rounded
MAX_POINT = 64  # 128 + zero is exact up to this zero
ROWS, WARPS = 64, 4  # of a program of `dequantize`

# Two words ($8, $9) -> eight pairs: the i-th values of both, each in the low bits of the bfloat16 128.
_CUTS = [f"prmt.b32 a, $8, $9, 0x0{4 + i // 2}0{i // 2};" if i % 2 == 0 else "shr.b32 a, a, 4;" for i in range(8)]
_PAIRS = [f"{cut} lop3.b32 ${i}, a, 0x000F000F, 0x43004300, 0xEA;" for i, cut in enumerate(_CUTS)]
WIDEN = tl.constexpr("{ .reg .b32 a;\n" + "\n".join(_PAIRS) + "\n}")


class Int4Weight(NamedTuple):
    """A matrix [rows, columns] in the layout of these kernels."""

    words: Tensor  # int32 [rows, columns / 8]; of 8 * span columns, word w has w, w + span, …, the lowest bits first
    scales: Tensor  # float16 [columns / group, rows], relative to row_scale
    zeros: Tensor  # float16 [columns / group, rows], relative to row_scale
    points: Tensor | None  # bfloat16 [columns / group, rows]: 128 + zero / scale, if all of these are integers
    row_scale: Tensor  # float32 [rows], powers of two
    group: int
    span: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.words.shape[0], 8 * self.words.shape[1]


def span_of(columns: int, group: int) -> int | None:
    """Return how far apart the columns of a word are. None: these kernels do not support the group size."""
    return next((span for span in SPANS if _fits(columns, group, span)), None)


def _fits(columns: int, group: int, span: int) -> bool:
    """Return whether columns are whole blocks, and groups whole blocks or blocks whole groups, of whole spans."""
    block = 8 * span
    return columns % block == 0 and group % span == 0 and (group % block == 0 or block % group == 0)


def arrange(packed: Tensor, scales: Tensor, zeros: Tensor) -> Int4Weight:
    """Rearrange columns that are in order, two per byte, with scales and zeros float32 [rows, groups]."""
    rows, columns = packed.shape[0], 2 * packed.shape[1]
    group = columns // scales.shape[1]
    span = span_of(columns, group)
    assert span is not None
    values = torch.stack([packed & 15, packed >> 4], -1).reshape(rows, -1, 4, 2, span)  # a byte has two of the eight
    apart = (values[:, :, :, 0] | (values[:, :, :, 1] << 4)).transpose(2, 3).contiguous()  # [rows, blocks, span, 4]
    largest = torch.maximum(scales.abs(), zeros.abs() / 16).amax(1).clamp(min=1e-30)
    row_scale = torch.exp2(torch.ceil(torch.log2(largest)))
    small = [(each / row_scale[:, None]).t().contiguous().half() for each in (scales, zeros)]
    words = apart.view(torch.int32).reshape(rows, -1)
    return Int4Weight(words, small[0], small[1], _points(scales, zeros), row_scale, group, span)


def _points(scales: Tensor, zeros: Tensor) -> Tensor | None:
    points = zeros / torch.where(scales == 0, 1.0, scales)
    whole = points.round()
    is_integer = ((points - whole).abs() < INTEGER_TOLERANCE) & (whole.abs() <= MAX_POINT)
    is_integer &= (scales != 0) | (zeros == 0)
    return (whole + OFFSET.value).t().contiguous().bfloat16() if bool(is_integer.all()) else None


@triton.jit
def _value(p, i: tl.constexpr):
    return (((p >> (4 * i)) & 15).to(tl.float32) + OFFSET).to(tl.bfloat16)


@triton.jit
def _widen(p, NATIVE: tl.constexpr):
    """Return 128 + each of the eight values of words, in bfloat16."""
    if NATIVE:
        return tl.inline_asm_elementwise(
            WIDEN,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
            [p],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ),
            is_pure=True,
            pack=2,
        )  # fmt: skip
    else:
        return (
            _value(p, 0), _value(p, 1), _value(p, 2), _value(p, 3),
            _value(p, 4), _value(p, 5), _value(p, 6), _value(p, 7),
        )  # fmt: skip


@triton.jit
def _tokens(x, norm, squares, tokens, columns, is_there, K: tl.constexpr, NORM: tl.constexpr):
    """Return the tokens [SPAN, BM], and the accumulated squares of their numbers."""
    a = tl.load(x + tokens[None, :] * K + columns[:, None], mask=is_there[None, :], other=0.0)
    if NORM:
        h = a.to(tl.float32)
        squares += h * h
        a = (h * tl.load(norm + columns).to(tl.float32)[:, None]).to(a.dtype)
    return a, squares


@triton.jit
def _less(b, points, at, POINTS: tl.constexpr, NATIVE: tl.constexpr):
    """Subtract the points of the rows from widened values [BN, SPAN], if there are any."""
    if POINTS:
        point = tl.load(points + at)[:, None]
        if NATIVE:
            point = tl.broadcast_to(point, b.shape)
            b = tl.inline_asm_elementwise(
                "sub.bf16x2 $0, $1, $2;", "=r,r,r", [b, point], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            b = (b.to(tl.float32) - point.to(tl.float32)).to(tl.bfloat16)
    return b


@triton.jit
def _scaled(acc, raw, sums, scales, zeros, at, POINTS: tl.constexpr):
    """Add the scaled product of one group to acc [BN, BM]; `sums` [SPAN, BM] are of the tokens' columns."""
    scale = tl.load(scales + at).to(tl.float32)
    acc += raw * scale[:, None]
    if not POINTS:
        shift = tl.load(zeros + at).to(tl.float32) + OFFSET * scale
        acc -= shift[:, None] * tl.sum(sums, 0)[None, :]
    return acc


@triton.jit(do_not_specialize=["M", "N", "num_lines"])
def _stream_int4(
    x, w, scales, zeros, points, row_scale, norm, bias, out, partial, arrived, ahead, M, N, num_lines, eps, factor,
    GROUP: tl.constexpr, SPAN: tl.constexpr, POINTS: tl.constexpr, NATIVE: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr, STAGES: tl.constexpr, LINES: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, KIND: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    share = tl.program_id(1)
    KS: tl.constexpr = K // SHARES
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)  # beyond the last row the last one is read again, and not written
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    is_there = m < M
    k = tl.arange(0, SPAN)
    wp = w + rows[:, None] * (K // 8) + share * (KS // 8) + k[None, :]
    up = N.to(tl.int64) * (K // 8)
    width = N * (2 if GATE else 1)  # of a row of scales
    follow(CHAINED)
    BLOCK: tl.constexpr = PER_WORD * SPAN
    SPANS: tl.constexpr = PER_WORD if GROUP >= BLOCK else GROUP // SPAN  # that share a scale
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    squares_of = tl.zeros([SPAN, BM], tl.float32)
    for start in tl.range(0, KS, BLOCK, num_stages=STAGES):
        first = share * KS + start
        b = _widen(tl.load(wp + start // 8), NATIVE)
        if GATE:
            b_up = _widen(tl.load(wp + up + start // 8), NATIVE)
        for part in tl.static_range(PER_WORD // SPANS):
            raw = tl.zeros([BN, BM], tl.float32)
            raw_up = tl.zeros([BN, BM], tl.float32)
            sums = tl.zeros([SPAN, BM], tl.float32)
            at = ((first + part * SPANS * SPAN) // GROUP).to(tl.int64) * width + rows
            for each in tl.static_range(SPANS):
                columns = first + (part * SPANS + each) * SPAN + k
                a, squares_of = _tokens(x, norm, squares_of, m, columns, is_there, K, NORM)
                if not POINTS:
                    sums += a.to(tl.float32)
                raw = tl.dot(_less(b[part * SPANS + each], points, at, POINTS, NATIVE), a, raw)
                if GATE:
                    raw_up = tl.dot(_less(b_up[part * SPANS + each], points, at + N, POINTS, NATIVE), a, raw_up)
            acc = _scaled(acc, raw, sums, scales, zeros, at, POINTS)
            if GATE:
                acc_up = _scaled(acc_up, raw_up, sums, scales, zeros, at + N, POINTS)
    if CHAINED and LINES > 0:
        _fetch_ahead(ahead, num_lines, LINES)
    finish(
        acc, acc_up, tl.sum(squares_of, 0), row_scale, None, bias, out, partial, arrived, n, m, M, N, eps, factor,
        K, BM, BN, SHARES, NORM, GATE, KIND, ADD, BIAS, True, False,
    )  # fmt: skip


def stream_int4(
    x: Tensor, weight: Int4Weight, around: Around, tile: Tile, scratch: Scratch, dtype: torch.dtype
) -> Tensor:
    """bfloat16 x [M, K] times the transpose of weight [N, K], as `stream` does it. A tile has the weight's own columns.

    Shares must divide the columns into whole blocks: K % (8 * span * shares) == 0.
    """
    assert x.dtype == torch.bfloat16 and x.shape[1] % (8 * weight.span * tile.shares) == 0
    constants = {
        "GROUP": weight.group,
        "SPAN": weight.span,
        "POINTS": weight.points is not None,
        "NATIVE": x.is_cuda,
    }
    args = (weight.words, weight.scales, weight.zeros, weight.points, weight.row_scale)
    operand = Operand(_stream_int4, args, weight.words.shape[0], constants)
    return stream_operand(x, operand, around, tile, scratch, dtype)


@triton.jit
def _dequantize(
    w, scales, zeros, row_scale, out, N, K: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, BN: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1).to(tl.int64)
    first = tl.program_id(1) * PER_WORD * SPAN
    k = tl.arange(0, SPAN)
    p = tl.load(w + rows[:, None] * (K // 8) + first // 8 + k[None, :])
    r = tl.load(row_scale + rows)
    follow(CHAINED)
    for i in tl.static_range(PER_WORD):
        at = ((first + i * SPAN) // GROUP).to(tl.int64) * N + rows
        scale, zero = tl.load(scales + at).to(tl.float32) * r, tl.load(zeros + at).to(tl.float32) * r
        numbers = ((p >> (4 * i)) & 15).to(tl.float32) * scale[:, None] - zero[:, None]
        to = out + rows[:, None] * K + first + i * SPAN + k[None, :]
        tl.store(to, numbers.to(out.dtype.element_ty), mask=(n < N)[:, None])


def dequantize(weight: Int4Weight, out: Tensor) -> Tensor:
    """Write the matrix to the beginning of `out`, which is contiguous; return it as [rows, columns]."""
    rows, columns = weight.shape
    out = out.reshape(-1)[: rows * columns].view(rows, columns)
    grid = (triton.cdiv(rows, ROWS), columns // (8 * weight.span))
    args = (weight.words, weight.scales, weight.zeros, weight.row_scale, out, rows)
    constants = {"K": columns, "GROUP": weight.group, "SPAN": weight.span, "BN": ROWS}
    launch(_dequantize, grid, args, constants, LaunchShape(WARPS))
    return out
