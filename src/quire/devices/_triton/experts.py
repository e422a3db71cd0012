"""The products of experts: gate and up with the activation, then down, then each token's sum.

Pairs (token, chosen expert) are grouped by expert (grouping.py). A program multiplies BN rows of one expert's matrix,
read through a table of addresses, with the tokens of a tile: weights are the left side of the product, as in stream.py.
Few tokens: every expert has one tile, so its weights are read once; the program of a range of columns that finishes
last adds up each token's answers. Many: the answers are written, and another kernel adds them. Both add in the order of
ranks, and a row of a product does not depend on its tile, so a token's bits do not depend on other tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, fetch, follow, launch
from .elementwise import activate
from .expert_formats import expert_address, load_row_scales, load_tile
from .grouping import Grouping
from .packed import is_packed, packed_products, sum_shares
from .packing import PACKED
from .stream import LINE, Scratch

SUMMED = 1024  # columns of a program of `_sum`
AHEAD_TILES = tl.constexpr(8)  # whose matrices are prefetched
AHEAD_BYTES = 4 << 20  # of them together: more would evict what the running product still needs
FILLING = 600  # programs that keep an H200 busy while they widen values


class ExpertTile(NamedTuple):
    """The tile of a product of experts."""

    rows: int  # of the weight, per program; of a gate and of an up matrix each
    columns: int  # at a time
    warps: int = 4
    stages: int = 4


class Matrices(NamedTuple):
    """A matrix of every expert, of one shape and format."""

    addresses: Tensor  # int64 [experts]; see expert_formats.py
    format: str
    num_rows: int  # of gate and up together
    num_columns: int
    bias: Tensor | None = None  # float32 [experts, num_rows]
    scratch: Scratch | None = None  # of quantized formats: where programs leave their shares


class Activation(NamedTuple):
    """What is between the products; see ops/experts.py."""

    kind: str
    is_gated: bool = True  # gate rows, then up rows
    limit: float = 0.0
    alpha: float = 1.0
    shift: float = 0.0
    on_input: bool = False  # weights of experts multiply the tokens, not the answers


@triton.jit
def _products(
    x, at, is_there, address, rows, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, FORMAT: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Return rows of the matrix at `address` times the tokens at rows `at` of x: [BN, BM]; with a gate two of them."""
    k = tl.arange(0, BK)
    xp = x + at[None, :] * K + k[:, None]
    dtype: tl.constexpr = x.dtype.element_ty
    num_rows = N * 2 if GATE else N
    acc = tl.zeros([BN, BM], tl.float32)
    acc_up = tl.zeros([BN, BM], tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        mask = is_there[None, :]
        if K % BK:
            mask = mask & (start + k < K)[:, None]
        a = tl.load(xp + start, mask=mask, other=0.0)
        w = load_tile(address, rows, start, num_rows, K, BK, FORMAT, dtype)
        acc = tl.dot(w, a, acc, input_precision="ieee")
        if GATE:
            w_up = load_tile(address, rows + N, start, num_rows, K, BK, FORMAT, dtype)
            acc_up = tl.dot(w_up, a, acc_up, input_precision="ieee")
    acc *= load_row_scales(address, rows, num_rows, K, FORMAT)[:, None]
    if GATE:
        acc_up *= load_row_scales(address, rows + N, num_rows, K, FORMAT)[:, None]
    return acc, acc_up


@triton.jit
def _load_tile_of(used, experts, ends, pairs, tile, place):
    """Return the number of tiles, and the expert, the end and the pairs of a tile, all read at once. Of a tile that is
    not used they are any numbers, and so is the pair of a place that is not."""
    return tl.load(used), tl.load(experts + tile), tl.load(ends + tile), tl.load(pairs + place)


@triton.jit
def _fetch_following(table, experts, tile, num_tiles, LINES: tl.constexpr):
    """Prefetch the first lines of the matrices that the first tiles of the next product read, in the last tiles of this
    one: memory stays busy in between."""
    first = tile - tl.maximum(num_tiles - AHEAD_TILES, 0)
    if first >= 0:
        address = expert_address(table, tl.load(experts + first)).to(tl.int64)
        line = tl.program_id(0) * LINES + tl.arange(0, LINES)
        fetch(address + line.to(tl.int64) * 128)


@triton.jit
def _fetch_ahead(ahead, num_lines, tile, num_tiles, LINES: tl.constexpr):
    """Prefetch the first lines of other weights, in the last tiles."""
    first = tile - tl.maximum(num_tiles - AHEAD_TILES, 0)
    if first >= 0:
        line = (first * tl.num_programs(0) + tl.program_id(0)) * LINES + tl.arange(0, LINES)
        fetch(ahead.to(tl.int64) + tl.minimum(line, num_lines - 1).to(tl.int64) * 128)


@triton.jit(do_not_specialize=["num_shares"])
def _expert_in(
    x, table, following, bias, weights, pairs, experts, ends, used, out, partial, shares_arrived, N, num_shares, limit,
    alpha, shift, TOP: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, FORMAT: tl.constexpr, GATE: tl.constexpr, KIND: tl.constexpr, LIMIT: tl.constexpr,
    BIAS: tl.constexpr, WEIGH: tl.constexpr, LINES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    place = tile * BM + tl.arange(0, BM)
    follow(CHAINED)
    num_tiles, expert, end, pair = _load_tile_of(used, experts, ends, pairs, tile, place)
    if tile >= num_tiles:
        return
    is_there = place < end
    pair = tl.where(is_there, pair, 0)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1)
    address = expert_address(table, expert)
    at = (pair // TOP).to(tl.int64)
    if is_packed(FORMAT):
        share = tl.program_id(2)
        acc, acc_up = packed_products(
            x, at, is_there, address, rows, N, share, num_shares, K, BM, BN, STAGES, FORMAT, GATE
        )
        if num_shares > 1:
            program = tile * tl.num_programs(0) + tl.program_id(0)
            acc, acc_up, is_last = sum_shares(
                acc, acc_up, partial, shares_arrived, program, share, num_shares, BM, BN, GATE
            )
            if not is_last:
                return
    else:
        acc, acc_up = _products(x, at, is_there, address, rows, N, K, BM, BN, BK, STAGES, FORMAT, GATE)
    if CHAINED and LINES > 0:
        _fetch_following(following, experts, tile, num_tiles, LINES)
    if WEIGH:
        weight = tl.load(weights + pair, mask=is_there, other=0.0)[None, :]
        acc *= weight
        acc_up *= weight
    if BIAS:
        of_expert = bias + expert.to(tl.int64) * (N * 2 if GATE else N)
        acc += tl.load(of_expert + rows)[:, None]
        if GATE:
            acc_up += tl.load(of_expert + N + rows)[:, None]
    if GATE:
        if LIMIT:
            acc = tl.minimum(acc, limit)
            acc_up = tl.minimum(tl.maximum(acc_up, -limit), limit)
        acc = activate(acc * alpha, KIND) / alpha * (acc_up + shift)
    else:
        acc = activate(acc, KIND)
    to = out + place[None, :].to(tl.int64) * N + n[:, None]
    tl.store(to, acc.to(out.dtype.element_ty), mask=is_there[None, :] & (n < N)[:, None])


@triton.jit(do_not_specialize=["T", "num_lines", "num_shares"])
def _expert_out(
    x, table, bias, weights, pairs, experts, ends, used, answers, total, arrived, ahead, partial,
    shares_arrived, N, T, num_lines, num_shares,
    TOP: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    FORMAT: tl.constexpr, BIAS: tl.constexpr, WEIGH: tl.constexpr, SUM: tl.constexpr, ADD: tl.constexpr,
    BT: tl.constexpr, LINES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    place = tile * BM + tl.arange(0, BM)
    follow(CHAINED)
    num_tiles, expert, end, pair = _load_tile_of(used, experts, ends, pairs, tile, place)
    if tile >= num_tiles:
        return
    is_there = place < end
    pair = tl.where(is_there, pair, 0)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.minimum(n, N - 1)
    address = expert_address(table, expert)
    at = place.to(tl.int64)
    if is_packed(FORMAT):
        share = tl.program_id(2)
        acc, _ = packed_products(x, at, is_there, address, rows, N, share, num_shares, K, BM, BN, STAGES, FORMAT, False)
        if num_shares > 1:
            program = tile * tl.num_programs(0) + tl.program_id(0)
            acc, _, is_last = sum_shares(acc, acc, partial, shares_arrived, program, share, num_shares, BM, BN, False)
            if not is_last:
                return
    else:
        acc, _ = _products(x, at, is_there, address, rows, N, K, BM, BN, BK, STAGES, FORMAT, False)
    if CHAINED and LINES > 0:
        _fetch_ahead(ahead, num_lines, tile, num_tiles, LINES)
    if BIAS:
        acc += tl.load(bias + expert.to(tl.int64) * N + rows)[:, None]
    if WEIGH:
        acc *= tl.load(weights + pair, mask=is_there, other=0.0)[None, :]
    to = answers + pair[None, :].to(tl.int64) * N + n[:, None]
    tl.store(to, acc.to(answers.dtype.element_ty), mask=is_there[None, :] & (n < N)[:, None])
    if SUM:
        tl.debug_barrier()
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == num_tiles - 1:
            tl.store(arrived + tl.program_id(0), 0)
            columns = tl.program_id(0) * BN + tl.arange(0, BN)
            for first in range(0, T, BT):
                tokens = first + tl.arange(0, BT)
                _add_up(answers, total, tokens, columns, T, N, TOP, ADD)


@triton.jit
def _add_up(answers, total, tokens, columns, T, N, TOP: tl.constexpr, ADD: tl.constexpr):
    """Write the sum of the answers to these tokens, or add it to what is there."""
    mask = (tokens < T)[:, None] & (columns < N)[None, :]
    first = answers + tokens[:, None].to(tl.int64) * TOP * N + columns[None, :]
    acc = tl.load(first, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
    for rank in tl.static_range(1, TOP):
        acc += tl.load(first + rank * N, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
    to = total + tokens[:, None].to(tl.int64) * N + columns[None, :]
    if ADD:
        acc += tl.load(to, mask=mask, other=0.0).to(tl.float32)
    tl.store(to, acc.to(total.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T"])
def _sum(answers, total, N, T, TOP: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    _add_up(answers, total, tl.program_id(0) + tl.arange(0, 1), columns, T, N, TOP, ADD)


class Inward(NamedTuple):
    """The first product of experts."""

    matrices: Matrices  # gate and up
    activation: Activation
    following: Tensor | None = None  # addresses of the second product's matrices, to be prefetched
    following_bytes: int = 0  # of one of them


def expert_in(x: Tensor, weights: Tensor, inward: Inward, grouping: Grouping, tile: ExpertTile) -> Tensor:
    """Multiply tokens x [T, dim] with gate and up of their experts, and activate: [places, ffn], in x's format.

    weights: of the pairs, float32 [T, top].
    """
    matrices, activation = inward[:2]
    is_gated, top = activation.is_gated, weights.shape[1]
    num_rows = matrices.num_rows // (2 if is_gated else 1)
    out = torch.empty((len(grouping.pairs), num_rows), dtype=x.dtype, device=x.device)
    grid, shares = _divided((triton.cdiv(num_rows, tile.rows), grouping.num_tiles), matrices, grouping.height, tile)
    args = (
        x, matrices.addresses, inward.following, matrices.bias, weights, *grouping[:4], out, *shares, num_rows, grid[2],
        activation.limit, activation.alpha, activation.shift,
    )  # fmt: skip
    constants = _constants(matrices, top, grouping.height, tile) | {
        "GATE": is_gated,
        "KIND": activation.kind,
        "LIMIT": activation.limit != 0,
        "BIAS": matrices.bias is not None,
        "WEIGH": activation.on_input,
        "LINES": _lines(inward, grid[0]),
    }
    launch(_expert_in, grid, args, constants, LaunchShape(tile.warps, tile.stages))
    return out


def _lines(inward: Inward, num_programs: int) -> int:
    """Return the lines that each program of a tile prefetches of a matrix."""
    if inward.following is None:
        return 0
    size = min(AHEAD_BYTES // AHEAD_TILES.value, inward.following_bytes)
    return 1 << max(size // LINE // num_programs, 1).bit_length() - 1


class Sum(NamedTuple):
    """How the answers to a token become one."""

    total: Tensor  # [T, dim]
    adds: bool = False  # to what `total` has
    scratch: Scratch | None = None  # of few tokens: the kernel of the product adds
    ahead: Tensor | None = None  # weights to prefetch, as bytes


def expert_out(
    hidden: Tensor, weights: Tensor | None, top: int, matrices: Matrices, grouping: Grouping, tile: ExpertTile, to: Sum
) -> None:
    """Multiply `hidden` [places, ffn] with down of its experts, weigh the answers, and add them up.

    weights: of the pairs, float32 [T, top]; None: the answers have them already.
    """
    num_rows, tokens = matrices.num_rows, len(to.total)
    is_few = to.scratch is not None
    if is_few:
        answers = to.scratch.partial  # type: ignore[union-attr]
    else:
        answers = torch.empty((tokens * top, num_rows), dtype=to.total.dtype, device=hidden.device)
    grid, shares = _divided((triton.cdiv(num_rows, tile.rows), grouping.num_tiles), matrices, grouping.height, tile)
    num_lines = 0 if to.ahead is None or not is_few else to.ahead.numel() // LINE
    last_tiles = min(AHEAD_TILES.value, top)  # fewer are never used
    args = (
        hidden, matrices.addresses, matrices.bias, weights, *grouping[:4], answers, to.total,
        to.scratch.arrived if to.scratch else None, to.ahead, *shares, num_rows, tokens, num_lines, grid[2],
    )  # fmt: skip
    constants = _constants(matrices, top, grouping.height, tile) | {
        "BIAS": matrices.bias is not None,
        "WEIGH": weights is not None,
        "SUM": is_few,
        "ADD": to.adds,
        "BT": 1 if tokens == 1 else 4 if tokens <= 4 else 16,
        "LINES": triton.next_power_of_2(triton.cdiv(num_lines, grid[0] * last_tiles)) if num_lines else 0,
    }
    launch(_expert_out, grid, args, constants, LaunchShape(tile.warps, tile.stages))
    if not is_few:
        block = min(SUMMED, triton.next_power_of_2(num_rows))
        has = {"TOP": top, "ADD": to.adds, "BLOCK": block}
        launch(_sum, (tokens, triton.cdiv(num_rows, block)), (answers, to.total, num_rows, tokens), has, LaunchShape(4))


def _divided(
    grid: tuple[int, int], matrices: Matrices, height: int, tile: ExpertTile
) -> tuple[tuple[int, int, int], tuple[Tensor | None, Tensor | None]]:
    """Divide the columns of quantized matrices into shares, if the programs would not fill the GPU otherwise.

    Return the grid, and where programs leave their shares: behind what answers of few tokens and their counters take.
    """
    scratch, programs, shares = matrices.scratch, grid[0] * grid[1], 1
    if scratch is None or matrices.format not in PACKED:
        return (*grid, 1), (None, None)
    partial, arrived = scratch.partial[scratch.partial.numel() // 2 :], scratch.arrived[scratch.arrived.numel() // 2 :]
    num_blocks = PACKED[matrices.format].padded(matrices.num_columns) // PACKED[matrices.format].block
    size = programs * 2 * tile.rows * height
    while programs * shares < FILLING and 4 * shares <= num_blocks and 2 * shares * size <= partial.numel():
        shares *= 2
    return (*grid, shares if programs <= arrived.numel() else 1), (partial, arrived)


def _constants(matrices: Matrices, top: int, height: int, tile: ExpertTile) -> dict[str, Any]:
    return {
        "TOP": top,
        "K": matrices.num_columns,
        "BM": height,
        "BN": tile.rows,
        "BK": tile.columns,
        "STAGES": tile.stages,
        "FORMAT": matrices.format,
    }
