"""Latent attention of whole prompts in the expanded form: keys and values of every head are computed from the latents.

A prompt whose text begins in the step has all of its keys in the step, so that nothing is read from the cache. With
many tokens the expansion costs less than it saves: a score is a sum over 192 numbers instead of 576, and a value has
128 instead of 512 (DeepSeek). The work plan (attention_work) has no items for such tokens, and 0 parts.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .attention import LOG2_E, mean_of, padded
from .chain import LaunchShape, follow, launch


class ExpandedKeys(NamedTuple):
    """Keys and values of the step's tokens."""

    plain: Tensor  # [T, heads * nope_dim]
    rotated: Tensor  # [T, rope_dim], the same for all heads
    values: Tensor  # [T, heads * value_dim]


def attend_expanded(
    q: Tensor, q_rope: Tensor, keys: ExpandedKeys, positions: Tensor, num_parts: Tensor, out: Tensor, *, num_heads: int,
    scale: float,
) -> None:  # fmt: skip
    """Attend with q [T, heads * nope_dim] and q_rope [T, heads * rope_dim], into `out` [T, heads * value_dim].

    Only tokens with 0 parts are computed. The strides between tokens are arbitrary.
    """
    num_tokens, is_wide = len(q), q.dtype.itemsize > 2
    block_m, block_n, shape = (32, 16, LaunchShape(4, 1)) if is_wide else (128, 64, LaunchShape(8, 3))
    nope_dim, rope_dim, value_dim = q.shape[1] // num_heads, keys.rotated.shape[1], out.shape[1] // num_heads
    args = (
        q, q_rope, *keys, positions, num_parts, out, num_tokens, scale * LOG2_E, q.stride(0), q_rope.stride(0),
        keys.plain.stride(0), keys.rotated.stride(0), keys.values.stride(0), out.stride(0),
    )  # fmt: skip
    constants = {
        "NOPE": nope_dim,
        "NOPE_PADDED": padded(nope_dim),
        "ROPE": rope_dim,
        "ROPE_PADDED": padded(rope_dim),
        "VALUE": value_dim,
        "VALUE_PADDED": padded(value_dim),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
    }
    launch(_attend_expanded, (num_heads, triton.cdiv(num_tokens, block_m)), args, constants, shape)


@triton.jit
def _attend_expanded(
    q, q_rope, keys, k_rope, values, positions, num_parts, out, num_tokens, scale, q_stride, q_rope_stride,
    key_stride, k_rope_stride, value_stride, out_stride, NOPE: tl.constexpr, NOPE_PADDED: tl.constexpr,
    ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tokens = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M + tl.arange(0, BLOCK_M)  # the longest rows first
    is_query = tokens < num_tokens
    is_query &= tl.load(num_parts + tokens, mask=is_query, other=1) == 0
    firsts = tokens - tl.load(positions + tokens, mask=is_query, other=0)  # the first token of the row
    begin, end = tl.min(tl.where(is_query, firsts, num_tokens)), tl.max(tl.where(is_query, tokens + 1, 0))
    follow(CHAINED)
    if begin >= end:
        return
    nope, rope, dims = tl.arange(0, NOPE_PADDED), tl.arange(0, ROPE_PADDED), tl.arange(0, VALUE_PADDED)
    rows = tokens.to(tl.int64)[:, None]
    query = tl.load(
        q + rows * q_stride + head * NOPE + nope[None, :], mask=is_query[:, None] & (nope < NOPE)[None, :], other=0.0
    )
    rotated = tl.load(
        q_rope + rows * q_rope_stride + head * ROPE + rope[None, :],
        mask=is_query[:, None] & (rope < ROPE)[None, :], other=0.0,
    )  # fmt: skip
    keys += head * NOPE
    values += head * VALUE
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
    # tiles that all queries see completely need no mask: those of one row, before its first query
    is_one_row = tl.max(tl.where(is_query, firsts, 0)) == begin
    seen = tl.where(is_one_row, tl.min(tl.where(is_query, tokens, num_tokens)) - begin, 0)
    masked = begin + seen // BLOCK_N * BLOCK_N
    for tile in range(begin, masked, BLOCK_N):
        top, weight, total = _tile(
            query, rotated, keys, k_rope, values, tokens, firsts, tile, end, scale, top, weight, total, key_stride,
            k_rope_stride, value_stride, NOPE, NOPE_PADDED, ROPE, ROPE_PADDED, VALUE, VALUE_PADDED, False, BLOCK_N,
        )  # fmt: skip
    for tile in range(masked, end, BLOCK_N):
        top, weight, total = _tile(
            query, rotated, keys, k_rope, values, tokens, firsts, tile, end, scale, top, weight, total, key_stride,
            k_rope_stride, value_stride, NOPE, NOPE_PADDED, ROPE, ROPE_PADDED, VALUE, VALUE_PADDED, True, BLOCK_N,
        )  # fmt: skip
    _, mean = mean_of(top, weight, total)
    to = out + rows * out_stride + head * VALUE + dims[None, :]
    tl.store(to, mean.to(out.dtype.element_ty), mask=is_query[:, None] & (dims < VALUE)[None, :])


@triton.jit
def _tile(
    query, rotated, keys, k_rope, values, tokens, firsts, tile, end, scale, top, weight, total, key_stride,
    k_rope_stride, value_stride, NOPE: tl.constexpr, NOPE_PADDED: tl.constexpr, ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Process one more tile of keys."""
    at = tile + tl.arange(0, BLOCK_N)
    rows = at.to(tl.int64)
    key = _load_rows(keys + rows * key_stride, at < end, NOPE, NOPE_PADDED, MASKED)
    turned = _load_rows(k_rope + rows * k_rope_stride, at < end, ROPE, ROPE_PADDED, MASKED)
    value = _load_rows(values + rows * value_stride, at < end, VALUE, VALUE_PADDED, MASKED)
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    score = tl.dot(rotated, tl.trans(turned), score, input_precision="ieee")
    if MASKED:
        is_seen = (at[None, :] >= firsts[:, None]) & (at[None, :] <= tokens[:, None])
        score = tl.where(is_seen, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, 1) * scale)
    base = new_top
    if MASKED:  # for a query that has seen no key yet
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    share = tl.exp2(score * scale - base[:, None])
    decay = tl.exp2(top - base)
    total = tl.dot(share.to(value.dtype), value, total * decay[:, None], input_precision="ieee")
    return new_top, weight * decay + tl.sum(share, 1), total


@triton.jit
def _load_rows(row, is_there, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Load some rows [N, size]."""
    columns = tl.arange(0, PADDED)
    if MASKED or SIZE != PADDED:
        numbers = tl.load(
            row[:, None] + columns[None, :], mask=is_there[:, None] & (columns < SIZE)[None, :], other=0.0
        )
    else:
        numbers = tl.load(row[:, None] + columns[None, :])
    return numbers
