"""The kernel between the product of q, k and v and attention: scales, norms of heads, rope, and the KV write.

One program computes one key head of one token, with the query heads that share it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .norm import Product, scaled


class Heads(NamedTuple):
    """The heads in the columns of a product of q, k and v: num_heads, then kv_heads, then kv_heads again."""

    num_heads: int
    kv_heads: int
    dim: int


class HeadNorm(NamedTuple):
    """RMS norm of each head, or of all heads of q and of all heads of k, before rope."""

    q: Tensor  # [dim], or that of all heads
    k: Tensor
    eps: float
    is_wide: bool = False  # of all heads together


class RopeTables(NamedTuple):
    """Cosines and sines of every position: float32 [positions, rotary / 2] each, scaled for yarn.

    Without rope, rotary is 0.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False  # pairs are (2i, 2i + 1), not (i, i + rotary / 2)


@triton.jit
def load_scaled(
    raw, token_scale, column_scale, token, columns, mask, STRIDE: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr,
):  # fmt: skip
    """Load some columns of one token of the product, with all scales, in float32."""
    x = tl.load(raw + token * STRIDE + columns, mask=mask, other=0.0)
    return scaled(x, token_scale, column_scale, token, columns, mask, TOKEN, COLUMN)


@triton.jit
def _rope_write(
    raw, token_scale, column_scale, q_norm, k_norm, eps, cos, sin, positions, slots, q_out, k_cache, v_cache,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, GROUP: tl.constexpr,
    HALF: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr, NORM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    STRIDE: tl.constexpr = (HEADS + 2 * KV) * DIM
    MEMBERS: tl.constexpr = HEADS // KV
    position, slot = tl.load(positions + token), tl.load(slots + token).to(tl.int64)
    # heads of this program: its query heads, then its key head, then its value head
    member = tl.arange(0, GROUP)[:, None]
    is_q, is_k, is_v = member < MEMBERS, member == MEMBERS, member == MEMBERS + 1
    head = tl.where(is_q, kv * MEMBERS + member, tl.where(is_k, HEADS + kv, HEADS + KV + kv))
    i = tl.arange(0, HALF)[None, :] + member * 0  # [GROUP, HALF], the shape of the stores
    used = (member < MEMBERS + 2) & (i < DIM // 2)
    # first and second number of each pair; numbers beyond the rotary part are not rotated
    if INTERLEAVED:
        low, high = 2 * i, 2 * i + 1
    elif 2 * PAIRS == DIM:
        low, high = i, i + PAIRS
    else:  # numbers that are not rotated come after both rotated halves
        low, high = tl.where(i < PAIRS, i, i + PAIRS), tl.where(i < PAIRS, i + PAIRS, i + DIM // 2)
    turns = (member <= MEMBERS) & (i < PAIRS)
    c = tl.load(cos + position * PAIRS + i, mask=turns, other=1.0)
    s = tl.load(sin + position * PAIRS + i, mask=turns, other=0.0)
    follow(CHAINED)
    a = load_scaled(raw, token_scale, column_scale, token, head * DIM + low, used, STRIDE, TOKEN, COLUMN)
    b = load_scaled(raw, token_scale, column_scale, token, head * DIM + high, used, STRIDE, TOKEN, COLUMN)
    if NORM:
        rms = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / DIM + eps)[:, None]
        rms = tl.where(is_v, 1.0, rms)
        for_q = is_q & used
        for_k = is_k & used
        wa = tl.load(q_norm + low, mask=for_q, other=1.0).to(tl.float32)
        wb = tl.load(q_norm + high, mask=for_q, other=1.0).to(tl.float32)
        wa *= tl.load(k_norm + low, mask=for_k, other=1.0).to(tl.float32)
        wb *= tl.load(k_norm + high, mask=for_k, other=1.0).to(tl.float32)
        a, b = a * rms * wa, b * rms * wb
    first, second = a * c - b * s, b * c + a * s
    to_q = q_out + (token * HEADS + head) * DIM
    mask_q = is_q & used
    tl.store(to_q + low, first.to(q_out.dtype.element_ty), mask=mask_q)
    tl.store(to_q + high, second.to(q_out.dtype.element_ty), mask=mask_q)
    at = ((slot // BLOCK_TOKENS * KV + kv) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * DIM
    mask_k, mask_v = is_k & used, is_v & used
    tl.store(k_cache + at + low, first.to(k_cache.dtype.element_ty), mask=mask_k)
    tl.store(k_cache + at + high, second.to(k_cache.dtype.element_ty), mask=mask_k)
    tl.store(v_cache + at + low, first.to(v_cache.dtype.element_ty), mask=mask_v)
    tl.store(v_cache + at + high, second.to(v_cache.dtype.element_ty), mask=mask_v)


class TokenPlacement(NamedTuple):
    """Positions and cache slots of the step's tokens."""

    positions: Tensor  # int32 [T]
    slots: Tensor  # int32 [T]


def rope_write(
    product: Product, heads: Heads, turns: RopeTables, where: TokenPlacement, cache: tuple[Tensor, Tensor],
    norm: HeadNorm | None = None, dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Return rotated q [T, num_heads * dim]; write rotated k, and v, to the cache. The norm is one of each head.

    The cache is [blocks, kv_heads, block_tokens, dim] for each of them.
    """
    raw = product.raw
    tokens, pairs = raw.shape[0], turns.cos.shape[1]
    q = torch.empty((tokens, heads.num_heads * heads.dim), dtype=dtype or raw.dtype, device=raw.device)
    members = heads.num_heads // heads.kv_heads
    normed = norm or HeadNorm(raw, raw, 0.0)
    args = (
        raw, product.token_scale, product.column_scale, normed.q, normed.k, normed.eps, turns.cos, turns.sin,
        where.positions, where.slots, q, *cache,
    )  # fmt: skip
    constants = {
        "HEADS": heads.num_heads,
        "KV": heads.kv_heads,
        "DIM": heads.dim,
        "PAIRS": pairs,
        "GROUP": triton.next_power_of_2(members + 2),
        "HALF": triton.next_power_of_2(heads.dim // 2),
        "INTERLEAVED": turns.interleaved,
        "BLOCK_TOKENS": cache[0].shape[2],
        "TOKEN": product.token_scale is not None,
        "COLUMN": product.column_scale is not None,
        "NORM": norm is not None,
    }
    launch(_rope_write, (tokens, heads.kv_heads), args, constants, LaunchShape(2))
    return q


@triton.jit
def _norm_all_heads(
    raw, token_scale, column_scale, q_norm, k_norm, out, eps, Q: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    TOKEN: tl.constexpr, COLUMN: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)  # q, k or v
    STRIDE: tl.constexpr = Q + 2 * K
    begin = tl.where(part == 0, 0, Q + (part - 1) * K)
    size = tl.where(part == 0, Q, K)
    i = tl.arange(0, BLOCK)
    mask = i < size
    w = tl.load(q_norm + i, mask=mask & (part == 0), other=1.0) * tl.load(
        k_norm + i, mask=mask & (part == 1), other=1.0
    )
    follow(CHAINED)
    x = load_scaled(raw, token_scale, column_scale, token, begin + i, mask, STRIDE, TOKEN, COLUMN).to(tl.float32)
    factor = tl.where(part == 2, 1.0, tl.rsqrt(tl.sum(x * x) / size + eps))
    tl.store(out + token * STRIDE + begin + i, (x * factor * w).to(out.dtype.element_ty), mask=mask)


def norm_all_heads(product: Product, heads: Heads, norm: HeadNorm, dtype: torch.dtype) -> Product:
    """Norm all heads of q together, and all of k. Return the product of q, k and v with all scales applied."""
    out = torch.empty_like(product.raw, dtype=dtype)
    scales = product.token_scale, product.column_scale
    constants = {
        "Q": heads.num_heads * heads.dim,
        "K": heads.kv_heads * heads.dim,
        "BLOCK": triton.next_power_of_2(heads.num_heads * heads.dim),
        "TOKEN": product.token_scale is not None,
        "COLUMN": product.column_scale is not None,
    }
    args = (product.raw, *scales, norm.q, norm.k, out, norm.eps)
    launch(_norm_all_heads, (len(out), 3), args, constants, LaunchShape(8))
    return Product(out)
