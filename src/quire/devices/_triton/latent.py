"""Latent attention by items (see attention_work), in the absorbed form: every head reads the same latents.

A program computes one item for one block of heads: the queries of its members are the rows of a matrix product, so that
a latent is read once for all of them. A score is q · latent + q_rope · rotated key; the sum is over latents.

    cache    [num_blocks, block_tokens, dim + rope_dim]: a latent, then its rotated key
    q        [T, heads, dim], absorbed; q_rope [T, heads, rope_dim]
    partial  as in attention.py, of latents

With few heads, the product has keys as rows (KEYS_FIRST): tensor cores multiply 64 rows at once, and 16 queries would
leave three quarters of them unused.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import LOG2_E, AttentionWork, blocks, fold, mean_of, merge_parts, padded
from .attention_work import AttentionKind
from .chain import LaunchShape, follow, launch

MAX_GROUP = {2: 64, 4: 32}  # heads of a program, by the bytes of a number: sums of 64 latents fill its registers


class LatentTile(NamedTuple):
    """Tile sizes and launch options."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    keys_first: bool = False


class LatentTiles(NamedTuple):
    narrow: LatentTile
    wide: LatentTile


def kind_of(num_heads: int, dim: int, rope_dim: int, dtype: torch.dtype) -> AttentionKind:
    """Return the kind of a layer: its heads are divided into blocks of one size."""
    largest = MAX_GROUP[max(dtype.itemsize, 2)]
    group = max(size for size in range(1, largest + 1) if num_heads % size == 0)
    return AttentionKind(num_heads // group, group, dim + rope_dim, dim, is_latent=True)


def latent_tiles(group: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> LatentTiles:
    """Return the tiles for blocks of this many heads, with activations and a cache in these formats."""
    least = max(16, triton.next_power_of_2(group))
    if dtype.itemsize > 2:
        slow = LatentTile(least, 16, 4, 1)
        return LatentTiles(slow, slow)
    wide = LatentTile(64, 32, 8, 3)
    num_warps = 4 if least == 16 and cache_dtype.itemsize == 2 else 8  # FP8 is converted in registers
    return LatentTiles(wide if least > 32 else LatentTile(least, 64, num_warps, 2, keys_first=True), wide)


@triton.jit
def _write_latent(
    latent, k_rope, slots, cache, latent_stride, rope_stride, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    to = cache + tl.load(slots + token).to(tl.int64) * (DIM + ROPE)
    dims, rope_dims = tl.arange(0, DIM_PADDED), tl.arange(0, ROPE_PADDED)
    follow(CHAINED)
    numbers = tl.load(latent + token * latent_stride + dims, mask=dims < DIM, other=0.0)
    rotated = tl.load(k_rope + token * rope_stride + rope_dims, mask=rope_dims < ROPE, other=0.0)
    tl.store(to + dims, numbers.to(cache.dtype.element_ty), mask=dims < DIM)
    tl.store(to + DIM + rope_dims, rotated.to(cache.dtype.element_ty), mask=rope_dims < ROPE)


def write_latent(latent: Tensor, k_rope: Tensor, slots: Tensor, cache: Tensor) -> None:
    """Write latents [T, dim] and rotated keys [T, rope_dim] to their slots [T].

    The strides between tokens are arbitrary.
    """
    dim, rope_dim = latent.shape[1], k_rope.shape[1]
    constants = {
        "DIM": dim,
        "DIM_PADDED": triton.next_power_of_2(dim),
        "ROPE": rope_dim,
        "ROPE_PADDED": triton.next_power_of_2(rope_dim),
    }
    args = (latent, k_rope, slots, cache, latent.stride(0), k_rope.stride(0))
    launch(_write_latent, (len(latent),), args, constants, LaunchShape(2))


class LatentQueries(NamedTuple):
    """What attends: the absorbed queries [T, heads, dim] and their rotated parts [T, heads, rope_dim]."""

    absorbed: Tensor
    rotated: Tensor


def attend_latents(
    q: LatentQueries, cache: Tensor, tables: Tensor, positions: Tensor, kind: AttentionKind, work: AttentionWork,
    out: Tensor, *, scale: float, fixed_chunk: int | None = None, merges: bool = True,
) -> None:  # fmt: skip
    """Attend over the cache, into `out` [T, heads, dim], the weighted sums of latents.

    `merges=False`: no token has two parts. The strides between tokens of q and out, and between rows of `tables`
    [R, B], are arbitrary.
    """
    configs = latent_tiles(kind.group, out.dtype, cache.dtype)
    for index, items, config in ((0, work.narrow, configs.narrow), (1, work.wide, configs.wide)):
        if not len(items):
            continue
        args = (
            q.absorbed, q.rotated, cache, tables, positions, out, items, work.counts[index:], work.members,
            work.first_part, work.num_parts, work.partial_out, work.partial_lse, scale * LOG2_E,
            q.absorbed.stride(0), q.rotated.stride(0), out.stride(0), tables.stride(0),
        )  # fmt: skip
        constants = {
            "HEAD_BLOCKS": kind.kv_heads,
            "GROUP": kind.group,
            "DIM": kind.value_dim,
            "DIM_PADDED": padded(kind.value_dim),
            "ROPE": kind.key_dim - kind.value_dim,
            "ROPE_PADDED": padded(kind.key_dim - kind.value_dim),
            "BLOCK_TOKENS": cache.shape[1],
            "FIXED_CHUNK": fixed_chunk or 0,
            "KEYS_FIRST": config.keys_first,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
        }
        shape = LaunchShape(config.num_warps, config.num_stages)
        launch(_attend_latent, (len(items) * kind.kv_heads,), args, constants, shape)
    if merges:
        merge_parts(work, out)


@triton.jit
def _attend_latent(
    q,
    q_rope,
    cache,
    tables,
    positions,
    out,
    items,
    num_items,
    members,
    first_part,
    num_parts,
    partial_out,
    partial_lse,
    scale,
    q_stride,
    rope_stride,
    out_stride,
    table_stride,
    HEAD_BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    FIXED_CHUNK: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHAINED: tl.constexpr,
):
    item = tl.program_id(0) // HEAD_BLOCKS
    head = tl.program_id(0) % HEAD_BLOCKS * GROUP  # blocks of heads run at the same time: they read the same latents
    # The host's arrays are loaded while the previous kernel ends; values beyond the last item are undefined.
    items += item * 6
    first, count, row = tl.load(items), tl.load(items + 1), tl.load(items + 2)
    begin, end, part = tl.load(items + 3), tl.load(items + 4), tl.load(items + 5)
    is_item = item < tl.load(num_items)
    count, begin, end = tl.where(is_item, count, 0), tl.where(is_item, begin, 0), tl.where(is_item, end, 0)

    rows, dims, rope_dims = tl.arange(0, BLOCK_M), tl.arange(0, DIM_PADDED), tl.arange(0, ROPE_PADDED)
    is_query = rows < count * GROUP
    member = tl.load(members + first + rows // GROUP, mask=is_query, other=0)
    heads = head + rows % GROUP
    position = tl.load(positions + member, mask=is_query, other=-1)
    table = tables + row.to(tl.int64) * table_stride
    block = blocks(table, begin, end, BLOCK_TOKENS, BLOCK_N)
    follow(CHAINED)
    if not is_item:
        return
    token = member.to(tl.int64)[:, None]
    is_value = is_query[:, None] & (dims < DIM)[None, :]
    query = tl.load(q + token * q_stride + heads[:, None] * DIM + dims[None, :], mask=is_value, other=0.0)
    rotated = tl.load(
        q_rope + token * rope_stride + heads[:, None] * ROPE + rope_dims[None, :],
        mask=is_query[:, None] & (rope_dims < ROPE)[None, :], other=0.0,
    )  # fmt: skip
    if FIXED_CHUNK == 0:
        top, weight, total = _walk(
            query, rotated, cache, table, block, position, is_query, begin, end, scale,
            DIM, DIM_PADDED, ROPE, ROPE_PADDED, BLOCK_TOKENS, True, KEYS_FIRST, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        weight = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, DIM_PADDED], tl.float32)
        for chunk in range(begin, end, FIXED_CHUNK):
            stop = tl.minimum(chunk + FIXED_CHUNK, end)
            block = blocks(table, chunk, stop, BLOCK_TOKENS, BLOCK_N)
            chunk_top, chunk_weight, chunk_total = _walk(
                query, rotated, cache, table, block, position, is_query, chunk, stop, scale,
                DIM, DIM_PADDED, ROPE, ROPE_PADDED, BLOCK_TOKENS, False, KEYS_FIRST, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            lse, mean = mean_of(chunk_top, chunk_weight, chunk_total)
            top, weight, total = fold(top, weight, total, lse, mean)
    lse, mean = mean_of(top, weight, total)

    is_whole = tl.load(num_parts + member, mask=is_query, other=1) == 1
    to = out + token * out_stride + heads[:, None] * DIM + dims[None, :]
    tl.store(to, mean.to(out.dtype.element_ty), mask=is_value & is_whole[:, None])
    place = tl.load(first_part + member, mask=is_query, other=0).to(tl.int64) + part
    place = place * (HEAD_BLOCKS * GROUP) + heads
    is_part = is_query & (is_whole == 0)
    tl.store(partial_lse + place, lse, mask=is_part)
    tl.store(partial_out + place[:, None] * DIM + dims[None, :], mean, mask=is_value & is_part[:, None])


@triton.jit
def _walk(
    query, rotated, cache, table, block, position, is_query, begin, end, scale,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, SPLITS_MASKS: tl.constexpr, KEYS_FIRST: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Softmax over the keys begin .. end - 1: the largest score [M], the sum of weights [M] and of latents [M, dim].

    `block` has the blocks of the first tile.
    """
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([DIM_PADDED, BLOCK_M] if KEYS_FIRST else [BLOCK_M, DIM_PADDED], tl.float32)
    masked = begin
    if SPLITS_MASKS:  # tiles that every query sees completely need no mask
        seen = tl.minimum(tl.min(tl.where(is_query, position, 1 << 30), 0) + 1, end)
        masked = begin + tl.maximum(seen - begin, 0) // BLOCK_N * BLOCK_N
        for tile in range(begin, masked, BLOCK_N):
            next_block = blocks(table, tile + BLOCK_N, end, BLOCK_TOKENS, BLOCK_N)
            top, weight, total = _tile(
                query, rotated, cache, block, position, tile, end, scale, top, weight, total,
                DIM, DIM_PADDED, ROPE, ROPE_PADDED, BLOCK_TOKENS, False, KEYS_FIRST, BLOCK_N,
            )  # fmt: skip
            block = next_block
        block = blocks(table, masked, end, BLOCK_TOKENS, BLOCK_N)
    for tile in range(masked, end, BLOCK_N):
        next_block = blocks(table, tile + BLOCK_N, end, BLOCK_TOKENS, BLOCK_N)
        top, weight, total = _tile(
            query, rotated, cache, block, position, tile, end, scale, top, weight, total,
            DIM, DIM_PADDED, ROPE, ROPE_PADDED, BLOCK_TOKENS, True, KEYS_FIRST, BLOCK_N,
        )  # fmt: skip
        block = next_block
    return top, weight, tl.trans(total) if KEYS_FIRST else total


@triton.jit
def _tile(
    query, rotated, cache, block, position, tile, end, scale, top, weight, total,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, ROPE: tl.constexpr, ROPE_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, MASKED: tl.constexpr, KEYS_FIRST: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Process one more tile of keys."""
    at = tile + tl.arange(0, BLOCK_N)
    slot = cache + (block.to(tl.int64) * BLOCK_TOKENS + at % BLOCK_TOKENS) * (DIM + ROPE)
    latent = _load_part(slot, at < end, DIM, DIM_PADDED, MASKED).to(query.dtype)
    key = _load_part(slot + DIM, at < end, ROPE, ROPE_PADDED, MASKED).to(query.dtype)
    AXIS: tl.constexpr = 0 if KEYS_FIRST else 1  # of the keys, in a score
    if KEYS_FIRST:
        score = tl.dot(latent, tl.trans(query), input_precision="ieee")
        score = tl.dot(key, tl.trans(rotated), score, input_precision="ieee")
    else:
        score = tl.dot(query, tl.trans(latent), input_precision="ieee")
        score = tl.dot(rotated, tl.trans(key), score, input_precision="ieee")
    if MASKED:
        last = tl.minimum(position, end - 1)
        is_seen = at[:, None] <= last[None, :] if KEYS_FIRST else at[None, :] <= last[:, None]
        score = tl.where(is_seen, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, AXIS) * scale)
    base = new_top
    if MASKED:  # for a query that has seen no key yet
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay = tl.exp2(top - base)
    if KEYS_FIRST:
        share = tl.exp2(score * scale - base[None, :])
        total = tl.dot(tl.trans(latent), share.to(query.dtype), total * decay[None, :], input_precision="ieee")
    else:
        share = tl.exp2(score * scale - base[:, None])
        total = tl.dot(share.to(query.dtype), latent, total * decay[:, None], input_precision="ieee")
    weight = weight * decay + tl.sum(share, AXIS)
    return new_top, weight, total


@triton.jit
def _load_part(slot, is_there, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Load one part of the keys of a tile [N, size]."""
    dims = tl.arange(0, PADDED)
    if MASKED or SIZE != PADDED:  # numbers beyond the end may be NaN, and 0 times NaN is NaN
        numbers = tl.load(slot[:, None] + dims[None, :], mask=is_there[:, None] & (dims < SIZE)[None, :], other=0.0)
    else:
        numbers = tl.load(slot[:, None] + dims[None, :])
    return numbers
