"""Attention of few rows with one token each, in one kernel: from the product of q, k and v to the merged output.

A program computes one narrow item (see attention_work) for one key head, with the query heads that share it.
    before   scales, norms of heads and rope, as in rope_write; every program rotates its own queries
    newest   the program whose item ends with the row's last key writes k and v to their slot, and uses them from its
             registers: what it writes to the cache is not read in this launch
    after    if a row has several parts, the program that finishes last merges all of them, in order, so the result does
             not depend on which program that is. It resets the counter to 0
A load waits for the loads that compute its address. So loads without dependencies come first, and keys are prefetched
before the product is there.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .attention import (
    LOG2_E,
    PLAIN,
    AttentionWork,
    ScoreTerms,
    blocks,
    configs_for,
    fold,
    head_terms,
    mean_of,
    padded,
    walk,
    with_terms,
)
from .chain import LaunchShape, await_previous, fetch, launch, release_next
from .norm import Product
from .rope import HeadNorm, Heads, RopeTables, TokenPlacement, load_scaled

MAX_ROWS = 16  # with more, the launch time of a kernel is a small part of the step
BLOCK_M = tl.constexpr(16)  # queries of a program
_LOG2_E = tl.constexpr(LOG2_E)
MERGED = tl.constexpr(8)  # parts that are loaded together
LINE = tl.constexpr(128)  # bytes


@triton.jit
def _turned(
    raw, token_scale, column_scale, norm, eps, cos, sin, token, head, dims, is_there,
    STRIDE: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, TOKEN: tl.constexpr,
    COLUMN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Return a head per row, normed and rotated: float32 [M, dim]. Sines are negated for the first number of a pair."""
    if INTERLEAVED:
        other = dims ^ 1  # the other number of the pair
    elif PAIRS:
        other = tl.where(dims < 2 * PAIRS, (dims + PAIRS) % (2 * PAIRS), dims)
    else:
        other = dims
    x = load_scaled(raw, token_scale, column_scale, token, head * DIM + dims, is_there, STRIDE, TOKEN, COLUMN)
    y = load_scaled(raw, token_scale, column_scale, token, head * DIM + other, is_there, STRIDE, TOKEN, COLUMN)
    if NORM:
        rms = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / DIM + eps)
        x *= rms * tl.load(norm + dims, mask=dims < DIM, other=0.0).to(tl.float32)
        y *= rms * tl.load(norm + other, mask=dims < DIM, other=0.0).to(tl.float32)
    return x * cos + y * sin if PAIRS else x


@triton.jit
def _fetch_keys(
    keys, values, table, begin, end, KV: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Prefetch the first two tiles of keys and values, block by block."""
    SIZE: tl.constexpr = BLOCK_TOKENS * DIM * keys.dtype.element_ty.primitive_bitwidth // 8
    LINES: tl.constexpr = triton.next_power_of_2(triton.cdiv(SIZE, LINE))
    at = begin // BLOCK_TOKENS + tl.arange(0, 2 * BLOCK_N // BLOCK_TOKENS)
    block = tl.load(table + tl.minimum(at, (end - 1) // BLOCK_TOKENS)).to(tl.int64)
    offset = block[:, None] * (KV * SIZE) + tl.minimum(tl.arange(0, LINES) * LINE, SIZE - 1)[None, :]
    fetch(keys.to(tl.int64) + offset)
    fetch(values.to(tl.int64) + offset)


@triton.jit
def _merged(
    partial_out, partial_lse, sinks, first, count, head, HEADS: tl.constexpr, GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Merge a program's heads over all parts of a token: [group, dim]. Loads bypass L1 to see others' writes."""
    member, dims = tl.arange(0, GROUP_PADDED), tl.arange(0, DIM_PADDED)
    is_head = member < GROUP
    is_value = is_head[:, None] & (dims < DIM)[None, :]
    top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    weight = tl.zeros([GROUP_PADDED], tl.float32)
    total = tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32)
    for begin in range(0, count, MERGED):
        for step in tl.static_range(MERGED):  # a missing part has weight 0 and changes no bit
            part = begin + step
            at = (first + part) * HEADS + head + member
            is_part = is_head & (part < count)
            lse = tl.load(partial_lse + at, mask=is_part, other=float("-inf"), cache_modifier=".cg")
            places = partial_out + at[:, None] * DIM + dims[None, :]
            mean = tl.load(places, mask=is_value & is_part[:, None], other=0.0, cache_modifier=".cg")
            top, weight, total = fold(top, weight, total, lse, mean)
    if SINKS:
        sink = tl.load(sinks + head + member, mask=is_head, other=0.0) * _LOG2_E
        top, weight, total = fold(top, weight, total, sink, tl.zeros([GROUP_PADDED, DIM_PADDED], tl.float32))
    _, mean = mean_of(top, weight, total)
    return mean


@triton.jit
def _attend_few(
    raw, token_scale, column_scale, q_norm, k_norm, eps, cos, sin, positions, slots, k_cache, v_cache, tables,
    items, num_items, first_part, num_parts, partial_out, partial_lse, arrived, out, sinks, slopes, distances,
    scale, table_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr, GROUP_PADDED: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, SLOPES: tl.constexpr, REACH: tl.constexpr,
    TOKEN: tl.constexpr, COLUMN: tl.constexpr, NORM: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    release_next(CHAINED)  # what comes before the other half reads the step's inputs, and keys of earlier steps
    GROUP: tl.constexpr = HEADS // KV
    STRIDE: tl.constexpr = (HEADS + 2 * KV) * DIM
    kv = tl.program_id(0) % KV
    items += tl.program_id(0) // KV * 6
    token, row = tl.load(items), tl.load(items + 2)  # the first members are the tokens themselves
    begin, end, part = tl.load(items + 3), tl.load(items + 4), tl.load(items + 5)
    # No number of an item is negative. Testing all of them here makes the loads run together with that of the count.
    if (tl.program_id(0) // KV >= tl.load(num_items)) | ((token | row | begin | end | part) < 0):
        await_previous(CHAINED)
        return
    token, row = token.to(tl.int64), row.to(tl.int64)
    position, slot = tl.load(positions + token), tl.load(slots + token).to(tl.int64)
    first, count = tl.load(first_part + token).to(tl.int64), tl.load(num_parts + token)
    table = tables + row * table_stride
    keys, values = k_cache + kv * (BLOCK_TOKENS * DIM), v_cache + kv * (BLOCK_TOKENS * DIM)
    if CHAINED:
        _fetch_keys(keys, values, table, begin, end, KV, DIM, BLOCK_TOKENS, BLOCK_N)

    # One layout [M, dim] for all, with k and v in every row: numbers that are combined are in the same thread.
    rows, dims = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, DIM_PADDED)[None, :] + tl.arange(0, BLOCK_M)[:, None] * 0
    is_dim = dims < DIM
    is_query = (rows < GROUP) & is_dim
    q_head = kv * GROUP + rows
    c, s = 1.0, 0.0
    if PAIRS:
        pair = dims // 2 if INTERLEAVED else dims % PAIRS
        c = tl.load(cos + position * PAIRS + pair, mask=dims < 2 * PAIRS, other=1.0)
        s = tl.load(sin + position * PAIRS + pair, mask=dims < 2 * PAIRS, other=0.0)
        s = tl.where(dims % 2 == 0 if INTERLEAVED else dims < PAIRS, -s, s)
    await_previous(CHAINED)
    v = load_scaled(
        raw, token_scale, column_scale, token, (HEADS + KV + kv) * DIM + dims, is_dim,
        STRIDE, TOKEN, COLUMN,
    )  # fmt: skip
    q = _turned(
        raw, token_scale, column_scale, q_norm, eps, c, s, token, q_head, dims, is_query,
        STRIDE, DIM, PAIRS, INTERLEAVED, TOKEN, COLUMN, NORM,
    )  # fmt: skip
    k = _turned(
        raw, token_scale, column_scale, k_norm, eps, c, s, token, HEADS + kv, dims, is_dim,
        STRIDE, DIM, PAIRS, INTERLEAVED, TOKEN, COLUMN, NORM,
    )  # fmt: skip
    query = q.to(out.dtype.element_ty)
    k, v = k.to(k_cache.dtype.element_ty), v.to(v_cache.dtype.element_ty)
    is_newest = end > position
    at = ((slot // BLOCK_TOKENS * KV + kv) * BLOCK_TOKENS + slot % BLOCK_TOKENS) * DIM + dims
    tl.store(k_cache + at, k, mask=is_dim & (rows == 0) & is_newest)
    tl.store(v_cache + at, v, mask=is_dim & (rows == 0) & is_newest)
    score = tl.sum(query.to(tl.float32) * k.to(query.dtype).to(tl.float32), 1) * scale
    heads = kv * GROUP + tl.minimum(tl.arange(0, BLOCK_M), GROUP - 1)
    slope, bias = head_terms(slopes, distances, heads, SLOPES, REACH)
    score = with_terms(score, tl.zeros([BLOCK_M], tl.int32), slope, bias, SOFTCAP, SLOPES, REACH)
    score = tl.where(is_newest, score, float("-inf"))
    # Widened here and not after `walk`: ptxas 12.8 corrupts FP8 numbers that are stored and used again later.
    newest = v.to(query.dtype)

    stop = tl.minimum(end, position)
    top, weight, total = walk(
        query, keys, values, table, blocks(table, begin, stop, BLOCK_TOKENS, BLOCK_N),
        tl.full([BLOCK_M], 0, tl.int32) + position, None, slope, bias, begin, stop, None, scale,
        KV, DIM, DIM_PADDED, DIM, DIM_PADDED, BLOCK_TOKENS, WINDOW, CHUNK, SOFTCAP, SLOPES, REACH, False,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    top, weight, total = fold(top, weight, total, score, newest.to(tl.float32))
    if SINKS:
        sink = tl.where(count == 1, tl.load(sinks + heads) * _LOG2_E, float("-inf"))
        top, weight, total = fold(top, weight, total, sink, tl.zeros([BLOCK_M, DIM_PADDED], tl.float32))
    lse, mean = mean_of(top, weight, total)

    outputs = out + token * (HEADS * DIM)
    if count == 1:
        tl.store(outputs + q_head * DIM + dims, mean.to(out.dtype.element_ty), mask=is_query)
        return
    place = (first + part) * HEADS + q_head
    tl.store(partial_lse + place, lse[:, None], mask=rows < GROUP)
    tl.store(partial_out + place * DIM + dims, mean, mask=is_query)
    tl.debug_barrier()
    counter = arrived + token * KV + kv
    if tl.atomic_add(counter, 1, sem="acq_rel") != count - 1:
        return
    tl.store(counter, 0)
    mean = _merged(
        partial_out, partial_lse, sinks, first, count, kv * GROUP, HEADS, GROUP, GROUP_PADDED, DIM, DIM_PADDED, SINKS
    )
    member, dims = tl.arange(0, GROUP_PADDED)[:, None], tl.arange(0, DIM_PADDED)[None, :]
    places = outputs + (kv * GROUP + member) * DIM + dims
    tl.store(places, mean.to(out.dtype.element_ty), mask=(member < GROUP) & (dims < DIM))


def attend_few(
    product: Product, heads: Heads, turns: RopeTables, where: TokenPlacement, cache: tuple[Tensor, Tensor],
    tables: Tensor, work: AttentionWork, arrived: Tensor, out: Tensor, *, scale: float, terms: ScoreTerms = PLAIN,
    window: int | None = None, chunk: int | None = None, norm: HeadNorm | None = None,
) -> None:  # fmt: skip
    """Write every token's key and value to the cache, and its attention over its row to `out` [T, num_heads * dim].

    The work has only narrow items, of one member each. `arrived` is int32 [at least T * kv_heads], zeros before and
    after; other kernels of the stream may use it too.
    """
    raw, (k_cache, v_cache) = product.raw, cache
    num_tokens, group = len(raw), heads.num_heads // heads.kv_heads
    assert len(work.wide) == 0 and group <= BLOCK_M.value and arrived.numel() >= num_tokens * heads.kv_heads
    normed = norm or HeadNorm(raw, raw, 0.0)
    config = configs_for(heads.dim, k_cache.dtype).narrow
    args = (
        raw, product.token_scale, product.column_scale, normed.q, normed.k, normed.eps, turns.cos, turns.sin,
        where.positions, where.slots, k_cache, v_cache, tables, work.narrow, work.counts, work.first_part,
        work.num_parts, work.partial_out, work.partial_lse, arrived, out, terms.sinks, terms.slopes, terms.distances,
        scale * LOG2_E, tables.stride(0),
    )  # fmt: skip
    constants = {
        "HEADS": heads.num_heads,
        "KV": heads.kv_heads,
        "DIM": heads.dim,
        "DIM_PADDED": padded(heads.dim),
        "PAIRS": turns.cos.shape[1],
        "INTERLEAVED": turns.interleaved,
        "GROUP_PADDED": triton.next_power_of_2(group),
        "BLOCK_TOKENS": k_cache.shape[2],
        "WINDOW": window or 0,
        "CHUNK": chunk or 0,
        "SOFTCAP": float(terms.softcap),
        "SINKS": terms.sinks is not None,
        "SLOPES": terms.slopes is not None,
        "REACH": terms.reach,
        "TOKEN": product.token_scale is not None,
        "COLUMN": product.column_scale is not None,
        "NORM": norm is not None,
        "BLOCK_N": config.block_n,
    }
    grid = (len(work.narrow) * heads.kv_heads,)
    launch(_attend_few, grid, args, constants, LaunchShape(config.num_warps, config.num_stages))
