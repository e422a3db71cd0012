"""Attention of every token to all tokens of its row, within a step and without a cache.

A program computes one query head of BLOCK_M consecutive tokens, for one row after the other if they are of several.
Tiles of keys begin at the start of a row, and a tile that a query does not see changes none of its bits: so its numbers
depend on its own row only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import LOG2_E, PLAIN, ScoreTerms, configs_for, fold, head_terms, mean_of, padded, with_terms
from .chain import LaunchShape, follow, launch

_LOG2_E = tl.constexpr(LOG2_E)


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, out: Tensor, *, scale: float, terms: ScoreTerms = PLAIN,
    window: int | None = None,
) -> None:  # fmt: skip
    """Attend with q [T, heads, key_dim] to k [T, kv_heads, key_dim] and v, into `out` [T, heads, value_dim].

    Rows are whole: the first token of each has position 0. Only the strides between tokens are arbitrary.
    """
    first = torch.arange(len(q), dtype=torch.int32, device=q.device) - positions  # the start of each token's row
    first.clamp_(min=0)  # steps that only warm up have rows without their first tokens: nothing outside is read
    end = torch.searchsorted(first, first, right=True, out_int32=True)
    key_dim, value_dim = k.shape[2], v.shape[2]
    config = configs_for(max(key_dim, value_dim), k.dtype, fixed=True).wide
    strides = (q.stride(0), k.stride(0), v.stride(0), out.stride(0))
    args = (
        q, k, v, first, end, out, terms.sinks, terms.slopes, terms.distances, scale * LOG2_E, len(q), *strides
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
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
    }
    grid = (triton.cdiv(len(q), config.block_m), q.shape[1])
    launch(_attend_rows, grid, args, constants, LaunchShape(config.num_warps, config.num_stages))


@triton.jit
def _attend_rows(
    q, k, v, firsts, ends, out, sinks, slopes, distances, scale, num_tokens, q_stride, k_stride, v_stride, out_stride,
    GROUP: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    SLOPES: tl.constexpr, REACH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
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
        for tile in range(low, high, BLOCK_N):
            at = tile + tl.arange(0, BLOCK_N)
            key = _load(keys, at, end, k_stride, key_dims, KEY_DIM)
            value = _load(values, at, end, v_stride, dims, VALUE_DIM)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            offset = at[None, :] - token[:, None]
            score = with_terms(score, offset, slope[:, None], bias[:, None], SOFTCAP, SLOPES, REACH)
            is_seen = (first == start)[:, None] & (at < end)[None, :]
            if WINDOW >= 0:
                is_seen &= tl.abs(offset) <= WINDOW
            score = tl.where(is_seen, score, float("-inf"))
            new_top = tl.maximum(top, tl.max(score, 1))
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            share, decay = tl.exp2(score - base[:, None]), tl.exp2(top - base)
            weight = weight * decay + tl.sum(share, 1)
            total = tl.dot(share.to(query.dtype), value, total * decay[:, None], input_precision="ieee")
            top = new_top
        at_row = tl.maximum(end, at_row + 1)
    if SINKS:
        sink = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head) * _LOG2_E
        top, weight, total = fold(top, weight, total, sink, tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32))
    _, mean = mean_of(top, weight, total)
    places = token.to(tl.int64)[:, None] * out_stride + head * VALUE_DIM + dims[None, :]
    tl.store(out + places, mean.to(out.dtype.element_ty), mask=is_query[:, None] & (dims < VALUE_DIM)[None, :])


@triton.jit
def _load(numbers, at, end, stride, dims, DIM: tl.constexpr):
    """Load the keys or values of a tile [N, dim]."""
    places = at.to(tl.int64)[:, None] * stride + dims[None, :]
    return tl.load(numbers + places, mask=(at < end)[:, None] & (dims < DIM)[None, :], other=0.0)
