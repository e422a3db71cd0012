"""Attention of every token to all tokens of its row, within a step and without a cache; and neighbours of tokens.

A program computes one query head of BLOCK_M consecutive tokens, for one row after the other if they are of several.
Tiles of keys begin at the start of a row, and a tile that a query does not see changes none of its bits: so its numbers
depend on its own row only. If all queries are of one row, its whole tiles need no mask; the explicit fma makes their
roundings those of tiles with one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import (
    LOG2_E,
    PLAIN,
    AttentionConfig,
    ScoreTerms,
    configs_for,
    fold,
    head_terms,
    mean_of,
    padded,
    with_terms,
)
from .chain import LaunchShape, follow, launch

_LOG2_E = tl.constexpr(LOG2_E)
SMALL_HEAD = 64  # numbers: more queries fit into a program
MAX_COLUMNS = 1024  # of a program that shifts


class RowBounds(NamedTuple):
    """For each token of a step of whole rows, the first token of its row, and the one after the last: int32 [T]."""

    first: Tensor
    end: Tensor

    @classmethod
    def of(cls, positions: Tensor) -> RowBounds:
        """Find the rows: the first token of each has position 0."""
        first = torch.arange(len(positions), dtype=torch.int32, device=positions.device) - positions
        first.clamp_(min=0)  # steps that only warm up have rows without their first tokens: nothing outside is read
        return cls(first, torch.searchsorted(first, first, right=True, out_int32=True))


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, out: Tensor, *, scale: float, terms: ScoreTerms = PLAIN,
    window: int | None = None, config: AttentionConfig | None = None,
) -> None:  # fmt: skip
    """Attend with q [T, heads, key_dim] to k [T, kv_heads, key_dim] and v, into `out` [T, heads, value_dim].

    Only the strides between tokens are arbitrary. `config`: tiles other than those that are chosen by the heads.
    """
    key_dim, value_dim = k.shape[2], v.shape[2]
    config = config or _config(max(key_dim, value_dim), k.dtype)
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    args = (
        q, k, v, *rows, out, terms.sinks, terms.slopes, terms.distances, scale * LOG2_E, len(q), *strides
    )  # fmt: skip
    constants = {
        "GROUP": q.shape[1] // k.shape[1],
        "KEY_DIM": key_dim,
        "KEY_PADDED": padded(key_dim),
        "VALUE_DIM": value_dim,
        "VALUE_PADDED": padded(value_dim),
        "WINDOW": -1 if window is None else window,
        "SOFTCAP": float(terms.softcap),
        "SINKS": terms.sinks is not None,
        "SLOPES": terms.slopes is not None,
        "REACH": terms.reach,
        "SPLITS_MASKS": window is None and not terms.has_biases,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
    }
    grid = (triton.cdiv(len(q), config.block_m), q.shape[1])
    launch(_attend_rows, grid, args, constants, LaunchShape(config.num_warps, config.num_stages))


def _config(dim: int, dtype: torch.dtype) -> AttentionConfig:
    """Return the tiles: as of prompts, whatever the step has, so that a row's numbers do not depend on it."""
    if dtype.itemsize == 2 and padded(dim) <= SMALL_HEAD:
        return AttentionConfig(128, 64, 4, 3)
    return configs_for(dim, dtype, fixed=True).wide


@triton.jit
def _attend_rows(
    q, k, v, firsts, ends, out, sinks, slopes, distances, scale, num_tokens, q_stride, k_stride, v_stride, out_stride,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    SLOPES: tl.constexpr, REACH: tl.constexpr, SPLITS_MASKS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    token = begin + tl.arange(0, BLOCK_M)
    key_dims, dims = tl.arange(0, KEY_PADDED), tl.arange(0, VALUE_PADDED)
    is_query = token < num_tokens
    slope, bias = head_terms(slopes, distances, tl.zeros([BLOCK_M], tl.int32) + head, SLOPES, REACH)
    follow(CHAINED)
    first = tl.load(firsts + token, mask=is_query, other=-1)
    places = token.to(tl.int64)[:, None] * q_stride + head * KEY_DIM + key_dims[None, :]
    query = tl.load(q + places, mask=is_query[:, None] & (key_dims < KEY_DIM)[None, :], other=0.0)
    keys, values = k + head // GROUP * KEY_DIM, v + head // GROUP * VALUE_DIM
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
    at_row, stop = begin, tl.minimum(begin + BLOCK_M, num_tokens)
    while at_row < stop:
        start, end = tl.load(firsts + at_row), tl.load(ends + at_row)
        low, high = start, end
        if WINDOW >= 0:
            low = start + tl.maximum(at_row - WINDOW - start, 0) // BLOCK_N * BLOCK_N
            high = tl.minimum(end, stop + WINDOW)
        masked = low
        if SPLITS_MASKS:
            is_one = (start <= begin) & (end >= stop)  # all queries are of this row
            masked = tl.where(is_one, low + (high - low) // BLOCK_N * BLOCK_N, low)
            for tile in range(low, masked, BLOCK_N):
                top, weight, total = _tile(
                    query, keys, values, token, first, start, tile, end, slope, bias, scale, top, weight, total,
                    k_stride, v_stride, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, WINDOW, SOFTCAP, SLOPES, REACH,
                    False, BLOCK_N,
                )  # fmt: skip
        for tile in range(masked, high, BLOCK_N):
            top, weight, total = _tile(
                query, keys, values, token, first, start, tile, end, slope, bias, scale, top, weight, total,
                k_stride, v_stride, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, WINDOW, SOFTCAP, SLOPES, REACH,
                True, BLOCK_N,
            )  # fmt: skip
        at_row = tl.maximum(end, at_row + 1)
    if SINKS:
        sink = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head) * _LOG2_E
        top, weight, total = fold(top, weight, total, sink, tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32))
    _, mean = mean_of(top, weight, total)
    places = token.to(tl.int64)[:, None] * out_stride + head * VALUE_DIM + dims[None, :]
    tl.store(out + places, mean.to(out.dtype.element_ty), mask=is_query[:, None] & (dims < VALUE_DIM)[None, :])


@triton.jit
def _tile(
    query, keys, values, token, first, start, tile, end, slope, bias, scale, top, weight, total, k_stride, v_stride,
    KEY_DIM: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Process one more tile of keys."""
    at = tile + tl.arange(0, BLOCK_N)
    key = _load(keys, at, end, k_stride, KEY_DIM, KEY_PADDED, MASKED)
    value = _load(values, at, end, v_stride, VALUE_DIM, VALUE_PADDED, MASKED)
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    offset = at[None, :] - token[:, None]
    factor = scale
    if SOFTCAP != 0.0 or SLOPES or REACH >= 0:
        score = with_terms(score * scale, offset, slope[:, None], bias[:, None], SOFTCAP, SLOPES, REACH)
        factor = 1.0
    if MASKED:
        is_seen = (first == start)[:, None] & (at < end)[None, :]
        if WINDOW >= 0:
            is_seen &= tl.abs(offset) <= WINDOW
        score = tl.where(is_seen, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, 1) * factor)
    base = new_top
    if MASKED:  # for a query that has seen no key yet
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    share, decay = tl.exp2(tl.fma(score, factor, -base[:, None])), tl.exp2(top - base)
    weight = tl.fma(weight, decay, tl.sum(share, 1))
    total = tl.dot(share.to(query.dtype), value, total * decay[:, None], input_precision="ieee")
    return new_top, weight, total


@triton.jit
def _load(numbers, at, end, stride, DIM: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Load the keys or values of a tile [N, dim]."""
    dims = tl.arange(0, PADDED)
    places = at.to(tl.int64)[:, None] * stride + dims[None, :]
    if MASKED or DIM != PADDED:
        loaded = tl.load(numbers + places, mask=(at < end)[:, None] & (dims < DIM)[None, :], other=0.0)
    else:
        loaded = tl.load(numbers + places)
    return loaded


def shift_rows(x: Tensor, rows: RowBounds, by: int) -> Tensor:
    """Return for each token of x [T, dim] the numbers of the token `by` further in its row; zeros beyond its ends."""
    num_tokens, dim = x.shape
    out = torch.empty((num_tokens, dim), dtype=x.dtype, device=x.device)
    block = min(triton.next_power_of_2(dim), MAX_COLUMNS)
    args, constants = (x, *rows, out, by, x.stride(0)), {"DIM": dim, "BLOCK": block}
    launch(_shift, (num_tokens, triton.cdiv(dim, block)), args, constants, LaunchShape(2))
    return out


@triton.jit
def _shift(x, firsts, ends, out, by, stride, DIM: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    other = token + by
    is_there = (other >= tl.load(firsts + token)) & (other < tl.load(ends + token))
    numbers = tl.load(x + other * stride + columns, mask=(columns < DIM) & is_there, other=0.0)
    tl.store(out + token * DIM + columns, numbers, mask=columns < DIM)
