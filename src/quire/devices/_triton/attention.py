"""Paged attention by items (see attention_work): one kernel for prompts, decoding and shared prefixes, and the merge.

A program computes one item for one key head. Its queries are those of all members, `group` heads each: BLOCK_M rows of
a matrix product, so that every key is read once for all of them. Softmax runs along the keys in tiles of BLOCK_N, with
base 2. Sums are float32.

    cache    K and V [num_blocks, kv_heads, block_tokens, dim]: a block of one head is contiguous
    partial  a token with several parts: normalized values [parts, heads, dim] and log2 of their weight [parts, heads]
    sink     the score of a key without value: added once, to an item that is whole, or by the merge
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.devices._triton.attention_work import WorkViews
from quire.devices._triton.chain import LaunchShape, follow, launch

LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)  # for kernels
RESIDENT = 4, 5  # programs per processor for narrow items in bfloat16 with heads of 128: `narrow`, and `denser`
SHARED_MEMORY = 227 << 10  # bytes of a program, on Hopper
MERGED_HEADS = 8  # per merging program: few enough to fill the device, enough to keep a thousand idle programs cheap


class ScoreTerms(NamedTuple):
    """What a score has beyond its scale (see ops/attention). Tensors are float32."""

    softcap: float = 0.0
    sinks: Tensor | None = None  # [heads]
    slopes: Tensor | None = None  # [heads]
    distances: Tensor | None = None  # [heads, 2 * reach + 1]

    @property
    def reach(self) -> int:
        """The distance beyond which the bias is constant; -1 without such a bias."""
        return -1 if self.distances is None else self.distances.shape[1] // 2

    @property
    def has_biases(self) -> bool:
        """Whether scores of keys are more than scaled."""
        return bool(self.softcap) or self.slopes is not None or self.distances is not None

    @property
    def is_plain(self) -> bool:
        """Whether a score is only scaled."""
        return not self.has_biases and self.sinks is None


PLAIN = ScoreTerms()


class AttentionConfig(NamedTuple):
    """Tile sizes and launch options of the attention kernel."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class AttentionConfigs(NamedTuple):
    narrow: AttentionConfig
    wide: AttentionConfig
    denser: AttentionConfig | None = None  # for narrow items: more of its programs run at once

    def for_narrow(self, num_programs: int, device: torch.device) -> AttentionConfig:
        """Return the configuration for narrow items that needs fewer rounds."""
        if self.denser is None or device.type != "cuda":
            return self.narrow
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        rounds, denser = (-(-num_programs // (each * processors)) for each in RESIDENT)
        return self.denser if denser < rounds else self.narrow


class AttentionWork(NamedTuple):
    """A step's attention work on the device. Grids have the sizes of `narrow` and `wide`, not of the counts."""

    counts: Tensor  # int32 [2] narrow and wide items
    narrow: Tensor  # int32 [capacity, 6]
    wide: Tensor  # int32 [capacity, 6]
    members: Tensor  # int32
    first_part: Tensor  # int32 [T]
    num_parts: Tensor  # int32 [T]
    partial_out: Tensor  # float32 [capacity, heads, dim]
    partial_lse: Tensor  # float32 [capacity, heads]

    @classmethod
    def of(cls, views: WorkViews, narrow: int, wide: int, partials: tuple[Tensor, Tensor]) -> AttentionWork:
        """Build the work from the views of the whole buffer, with grids for `narrow` and `wide` items."""
        return cls(
            views.counts,
            views.narrow[:narrow],
            views.wide[:wide],
            views.members,
            views.first_part,
            views.num_parts,
            *partials,
        )


def padded(head_dim: int) -> int:
    """Return the size of a head in a matrix product: a power of two, at least the minimum of tensor cores."""
    return max(16, triton.next_power_of_2(head_dim))


def configs_for(
    head_dim: int, dtype: torch.dtype, *, group: int = 1, fixed: bool = False, is_decode: bool = False
) -> AttentionConfigs:
    """Return the fastest known configurations for this head size and this format of the cache.

    Wide items of prompts are enough to keep processors busy; those of shared prefixes, in steps that only decode, are
    few, and more warps finish each one sooner. An item has at least the `group` queries of one token.
    """
    size, dim = dtype.itemsize, padded(head_dim)
    narrow = (
        AttentionConfig(16, 64, 4, 3)
        if dim * size < 256
        else AttentionConfig(16, 32, 2, 4)
        if dim * size == 256
        else AttentionConfig(16, 32, 4, 2 if dim * size < 2048 else 1)
    )
    wide = _wide_config(dim, size, fixed, is_decode)
    if group > narrow.block_m:
        least = triton.next_power_of_2(group)
        return AttentionConfigs(*(_enlarged(each, max(least, each.block_m), dim, size) for each in (narrow, wide)))
    has_denser = dim * size == 256 and size < 4 and not fixed
    return AttentionConfigs(narrow, wide, AttentionConfig(16, 32, 2, 3) if has_denser else None)


def _enlarged(config: AttentionConfig, block_m: int, dim: int, size: int) -> AttentionConfig:
    """Return a configuration for more queries, whose tiles of keys and values fit beside them."""
    stages, block_n = config.num_stages, config.block_n
    while (block_m * max(size, 2) + 2 * stages * block_n * size) * dim > SHARED_MEMORY and (stages, block_n) != (1, 16):
        stages, block_n = (stages - 1, block_n) if stages > 1 else (1, block_n // 2)
    num_warps = max(config.num_warps, 4 if block_m * dim <= 128 * 128 else 8)
    return AttentionConfig(block_m, block_n, num_warps, stages)


def _wide_config(dim: int, size: int, fixed: bool, is_decode: bool) -> AttentionConfig:
    """Heads beyond 128 have tiles that fit in shared memory and registers."""
    if size == 4:
        return AttentionConfig(64, 32, 4, 2) if dim <= 256 else AttentionConfig(32, 16, 4, 2)
    if dim > 256:
        return AttentionConfig(64, 32, 8, 2)
    if fixed:
        return AttentionConfig(64, 64, 4, 3) if dim <= 128 else AttentionConfig(64, 64, 8, 2)
    if dim > 128:
        return AttentionConfig(128, 64, 8, 2)
    return AttentionConfig(128, 64, 8, 3) if is_decode or size == 1 else AttentionConfig(128, 64, 4, 2)


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    positions: Tensor,
    work: AttentionWork,
    out: Tensor,
    *,
    scale: float,
    terms: ScoreTerms = PLAIN,
    window: int | None = None,
    chunk: int | None = None,
    fixed_chunk: int | None = None,
    configs: AttentionConfigs | None = None,
    merges: bool = True,
    wide: Callable[[], None] | None = None,
) -> None:
    """Attend with q [T, heads, key_dim] over the cache, into `out` [T, heads, value_dim].

    `merges=False`: no token has two parts. `wide` launches another kernel for the wide items. The strides between
    tokens of q and out, and between rows of `tables` [R, B], are arbitrary. All else is contiguous.
    """
    kv_heads, dim = k_cache.shape[1], max(q.shape[2], out.shape[2])
    group, fixed = q.shape[1] // kv_heads, fixed_chunk is not None
    configs = configs or configs_for(dim, k_cache.dtype, group=group, fixed=fixed)
    narrow = configs.for_narrow(len(work.narrow) * kv_heads, q.device)
    tensors = (q, k_cache, v_cache, tables, positions, work, out)
    hidden = {"WINDOW": window or 0, "CHUNK": chunk or 0, "FIXED_CHUNK": fixed_chunk or 0}
    if len(work.narrow):
        _launch(*tensors, 0, work.narrow, narrow, scale, terms, hidden)
    if len(work.wide) and wide is not None:
        wide()
    elif len(work.wide):
        _launch(*tensors, 1, work.wide, configs.wide, scale, terms, hidden)
    if merges:
        merge_parts(work, out, terms.sinks)


def merge_parts(work: AttentionWork, out: Tensor, sinks: Tensor | None = None) -> None:
    """Merge the partial results of all tokens that have several, into `out` [T, heads, dim]."""
    num_tokens, num_heads, dim = out.shape
    parts = (work.partial_out, work.partial_lse, work.first_part, work.num_parts, sinks, out, out.stride(0))
    constants = {
        "HEADS": num_heads,
        "DIM": dim,
        "DIM_PADDED": padded(dim),
        "SINKS": sinks is not None,
        "BLOCK_HEADS": MERGED_HEADS,
        "AHEAD": 4,
    }
    launch(_merge, (num_tokens, triton.cdiv(num_heads, MERGED_HEADS)), parts, constants, LaunchShape(2))


def _launch(q, k_cache, v_cache, tables, positions, work, out, index, items, config, scale, terms, hidden) -> None:
    """Launch the narrow (index 0) or wide (index 1) items."""
    kv_heads, block_tokens, dim = k_cache.shape[1:]
    args = (
        q,
        k_cache,
        v_cache,
        tables,
        positions,
        out,
        items,
        work.counts[index:],
        work.members,
        work.first_part,
        work.num_parts,
        work.partial_out,
        work.partial_lse,
        terms.sinks,
        terms.slopes,
        terms.distances,
        scale * LOG2_E,
        q.stride(0),
        out.stride(0),
        tables.stride(0),
    )
    constants = {
        "KV_HEADS": kv_heads,
        "GROUP": q.shape[1] // kv_heads,
        "KEY_DIM": dim,
        "KEY_PADDED": padded(dim),
        "VALUE_DIM": v_cache.shape[3],
        "VALUE_PADDED": padded(v_cache.shape[3]),
        "BLOCK_TOKENS": block_tokens,
        **hidden,
        "SOFTCAP": float(terms.softcap),
        "SINKS": terms.sinks is not None,
        "SLOPES": terms.slopes is not None,
        "REACH": terms.reach,
        "SPLITS_MASKS": index == 1 and not any(hidden.values()),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
    }
    launch(_attend, (len(items) * kv_heads,), args, constants, LaunchShape(config.num_warps, config.num_stages))


@triton.jit
def _attend(
    q,
    k_cache,
    v_cache,
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
    sinks,
    slopes,
    distances,
    scale,
    q_stride,
    out_stride,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    FIXED_CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SLOPES: tl.constexpr,
    REACH: tl.constexpr,
    SPLITS_MASKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CHAINED: tl.constexpr,
):
    item = tl.program_id(0) // KV_HEADS
    head = tl.program_id(0) % KV_HEADS  # heads of an item run at the same time: their keys are adjacent in memory
    # The host's arrays are loaded while the previous kernel ends; values beyond the last item are undefined.
    items += item * 6
    first, count, row = tl.load(items), tl.load(items + 1), tl.load(items + 2)
    begin, end, part = tl.load(items + 3), tl.load(items + 4), tl.load(items + 5)
    is_item = item < tl.load(num_items)
    count, begin, end = tl.where(is_item, count, 0), tl.where(is_item, begin, 0), tl.where(is_item, end, 0)

    rows = tl.arange(0, BLOCK_M)
    key_dims, dims = tl.arange(0, KEY_PADDED), tl.arange(0, VALUE_PADDED)
    is_query = rows < count * GROUP
    member = tl.load(members + first + rows // GROUP, mask=is_query, other=0)
    heads = head * GROUP + rows % GROUP
    position = tl.load(positions + member, mask=is_query, other=-1)
    table = tables + row.to(tl.int64) * table_stride
    block = blocks(table, begin, end, BLOCK_TOKENS, BLOCK_N)
    slope, bias = head_terms(slopes, distances, heads, SLOPES, REACH)
    follow(CHAINED)
    if not is_item:
        return
    places = member.to(tl.int64)[:, None] * q_stride + heads[:, None] * KEY_DIM + key_dims[None, :]
    query = tl.load(q + places, mask=is_query[:, None] & (key_dims < KEY_DIM)[None, :], other=0.0)
    keys = k_cache + head * (BLOCK_TOKENS * KEY_DIM)
    values = v_cache + head * (BLOCK_TOKENS * VALUE_DIM)

    if FIXED_CHUNK == 0:
        top, weight, total = walk(
            query, keys, values, table, block, position, is_query, slope, bias, begin, end, None, scale,
            KV_HEADS, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, BLOCK_TOKENS, WINDOW, CHUNK,
            SOFTCAP, SLOPES, REACH, SPLITS_MASKS, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        weight = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
        first_key = None
        if WINDOW or CHUNK:
            first_key = _first_seen(position, is_query, WINDOW, CHUNK)
        for chunk in range(begin, end, FIXED_CHUNK):
            stop = tl.minimum(chunk + FIXED_CHUNK, end)
            block = blocks(table, chunk, stop, BLOCK_TOKENS, BLOCK_N, first_key)
            chunk_top, chunk_weight, chunk_total = walk(
                query, keys, values, table, block, position, is_query, slope, bias, chunk, stop, first_key, scale,
                KV_HEADS, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, BLOCK_TOKENS, WINDOW, CHUNK,
                SOFTCAP, SLOPES, REACH, False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            lse, mean = mean_of(chunk_top, chunk_weight, chunk_total)
            top, weight, total = fold(top, weight, total, lse, mean)
    is_whole = tl.load(num_parts + member, mask=is_query, other=1) == 1
    if SINKS:
        sink = tl.load(sinks + heads) * _LOG2_E
        top, weight, total = fold(
            top, weight, total, tl.where(is_whole, sink, float("-inf")), tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
        )
    lse, mean = mean_of(top, weight, total)

    is_value = is_query[:, None] & (dims < VALUE_DIM)[None, :]
    places = member.to(tl.int64)[:, None] * out_stride + heads[:, None] * VALUE_DIM + dims[None, :]
    tl.store(out + places, mean.to(out.dtype.element_ty), mask=is_value & is_whole[:, None])
    place = tl.load(first_part + member, mask=is_query, other=0).to(tl.int64) + part
    place = place * (KV_HEADS * GROUP) + heads
    is_part = is_query & (is_whole == 0)
    tl.store(partial_lse + place, lse, mask=is_part)
    tl.store(partial_out + place[:, None] * VALUE_DIM + dims[None, :], mean, mask=is_value & is_part[:, None])


@triton.jit
def head_terms(slopes, distances, heads, SLOPES: tl.constexpr, REACH: tl.constexpr):
    """Return the slope of each head for scores in base 2, and where its biases by distance are.

    What does not exist is `heads` instead, and not read.
    """
    slope, bias = heads, heads
    if SLOPES:
        slope = tl.load(slopes + heads) * _LOG2_E
    if REACH >= 0:
        bias = distances + heads * (2 * REACH + 1)
    return slope, bias


@triton.jit
def with_terms(score, offset, slope, bias, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, REACH: tl.constexpr):
    """Return the scores, in base 2, with their terms. `offset`: position of the key minus that of the query."""
    if SOFTCAP != 0.0:
        rest = tl.exp2(tl.abs(score) * (-2.0 / SOFTCAP))
        capped = (1.0 - rest) / (1.0 + rest) * (SOFTCAP * _LOG2_E)
        score = tl.where(score < 0.0, -capped, capped)
    if SLOPES:
        score -= slope * tl.abs(offset).to(tl.float32)
    if REACH >= 0:
        score += tl.load(bias + tl.minimum(tl.maximum(offset, -REACH), REACH) + REACH) * _LOG2_E
    return score


@triton.jit
def walk(
    query,
    keys,
    values,
    table,
    block,
    position,
    is_query,
    slope,
    bias,
    begin,
    end,
    first,
    scale,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr,
    REACH: tl.constexpr,
    SPLITS_MASKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Softmax over the keys begin .. end - 1: the largest score [M], the sum of weights [M] and of values [M, dim].

    `block` has the blocks of the first tile. Keys before `first` are not loaded; None: all are.
    """
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    # With few queries, warps are laid out along the keys, where a sum needs barriers: each thread sums its own keys.
    FEW: tl.constexpr = BLOCK_M == 16
    weight = tl.zeros([BLOCK_M, BLOCK_N] if FEW else [BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
    masked = begin
    if SPLITS_MASKS:  # tiles that every query sees completely need no mask
        seen = tl.minimum(tl.min(tl.where(is_query, position, 1 << 30), 0) + 1, end)
        masked = begin + tl.maximum(seen - begin, 0) // BLOCK_N * BLOCK_N
        for tile in range(begin, masked, BLOCK_N):
            next_block = blocks(table, tile + BLOCK_N, end, BLOCK_TOKENS, BLOCK_N)
            top, weight, total = _tile(
                query, keys, values, block, position, slope, bias, tile, end, first, scale, top, weight, total,
                KV_HEADS, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, BLOCK_TOKENS, WINDOW, CHUNK,
                SOFTCAP, SLOPES, REACH, False, BLOCK_N,
            )  # fmt: skip
            block = next_block
        block = blocks(table, masked, end, BLOCK_TOKENS, BLOCK_N)
    for tile in range(masked, end, BLOCK_N):
        next_block = blocks(table, tile + BLOCK_N, end, BLOCK_TOKENS, BLOCK_N, first)
        top, weight, total = _tile(
            query, keys, values, block, position, slope, bias, tile, end, first, scale, top, weight, total,
            KV_HEADS, KEY_DIM, KEY_PADDED, VALUE_DIM, VALUE_PADDED, BLOCK_TOKENS, WINDOW, CHUNK,
            SOFTCAP, SLOPES, REACH, True, BLOCK_N,
        )  # fmt: skip
        block = next_block
    return top, tl.sum(weight, 1) if FEW else weight, total


@triton.jit
def _first_seen(position, is_query, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return the first key that a query of the item sees. The table may have no block for those before it."""
    least = tl.min(tl.where(is_query, position, 1 << 30), 0)
    first = least * 0
    if WINDOW:
        first = least - WINDOW + 1
    if CHUNK:
        first = tl.maximum(first, least // CHUNK * CHUNK)
    return first


@triton.jit
def blocks(table, tile, end, BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, first=None):
    """Return the block of each key of a tile. Loaded one tile ahead, so that the loads of keys depend on no load of the
    same iteration: Triton's pipeline would start those later."""
    at = tile + tl.arange(0, BLOCK_N)
    is_there = at < end if first is None else (at < end) & (at >= first)
    return tl.load(table + at // BLOCK_TOKENS, mask=is_there, other=0)


@triton.jit
def _tile(
    query, keys, values, block, position, slope, bias, tile, end, first, scale, top, weight, total,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Process one more tile of keys."""
    at = tile + tl.arange(0, BLOCK_N)
    key = _load_tile(keys, block, at, end, first, KV_HEADS, KEY_DIM, KEY_PADDED, BLOCK_TOKENS, MASKED)
    value = _load_tile(values, block, at, end, first, KV_HEADS, VALUE_DIM, VALUE_PADDED, BLOCK_TOKENS, MASKED)
    score = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
    HAS_TERMS: tl.constexpr = SOFTCAP != 0.0 or SLOPES or REACH >= 0
    factor = scale
    if HAS_TERMS:
        score = with_terms(
            score * scale, at[None, :] - position[:, None], slope[:, None], bias[:, None], SOFTCAP, SLOPES, REACH
        )
        factor = 1.0
    if MASKED:
        is_seen = at[None, :] <= tl.minimum(position, end - 1)[:, None]
        if WINDOW:
            is_seen &= position[:, None] - at[None, :] < WINDOW
        if CHUNK:
            is_seen &= at[None, :] >= (position // CHUNK * CHUNK)[:, None]
        score = tl.where(is_seen, score, float("-inf"))
    new_top = tl.maximum(top, tl.max(score, 1) * factor)
    base = new_top
    if MASKED:  # for a query that has seen no key yet
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    share = tl.exp2(score * factor - base[:, None])
    decay = tl.exp2(top - base)
    if len(weight.shape) == 2:
        weight = weight * decay[:, None] + share
    else:
        weight = weight * decay + tl.sum(share, 1)
    total = tl.dot(share.to(query.dtype), value.to(query.dtype), total * decay[:, None], input_precision="ieee")
    return new_top, weight, total


@triton.jit
def _load_tile(
    cache, block, at, end, first, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Load the keys or values of a tile [N, dim]."""
    dims = tl.arange(0, PADDED)
    slot = block.to(tl.int64) * (KV_HEADS * BLOCK_TOKENS * DIM) + (at % BLOCK_TOKENS) * DIM
    places = slot[:, None] + dims[None, :]
    if MASKED or DIM != PADDED:  # numbers of no key, beyond the end or before the first, may be NaN: 0 times NaN is NaN
        is_there = at < end if first is None else (at < end) & (at >= first)
        numbers = tl.load(cache + places, mask=is_there[:, None] & (dims < DIM)[None, :], other=0.0)
    else:
        numbers = tl.load(cache + places)
    return numbers


@triton.jit
def mean_of(top, weight, total):
    """Return log2 of the total weight, and the weighted mean; without any key, minus infinity and 0."""
    divisor = tl.where(weight == 0.0, 1.0, weight)
    return top + tl.log2(divisor), total / divisor[:, None]


@triton.jit
def fold(top, weight, total, lse, mean):
    """Fold in one more partial result. The explicit fma makes roundings the same in every kernel."""
    new_top = tl.maximum(top, lse)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    decay, share = tl.exp2(top - base), tl.exp2(lse - base)
    return new_top, tl.fma(weight, decay, share), tl.fma(total, decay[:, None], mean * share[:, None])


@triton.jit
def _merge(
    partial_out,
    partial_lse,
    first_part,
    num_parts,
    sinks,
    out,
    out_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SINKS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    AHEAD: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Merge the partial results of some heads of one token, in order. AHEAD of them are loaded together."""
    token = tl.program_id(0)
    count = tl.load(num_parts + token)
    first = tl.load(first_part + token).to(tl.int64)
    follow(CHAINED)
    if count <= 1:
        return
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, DIM_PADDED)
    is_head = heads < HEADS
    is_value = is_head[:, None] & (dims < DIM)[None, :]
    places = heads[:, None] * DIM + dims[None, :]
    top = tl.full([BLOCK_HEADS], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_HEADS], tl.float32)
    total = tl.zeros([BLOCK_HEADS, DIM_PADDED], tl.float32)
    for begin in range(0, count, AHEAD):
        for step in tl.static_range(AHEAD):  # a missing part has weight 0 and changes no bit
            part = begin + step
            at = (first + part) * HEADS
            lse = tl.load(partial_lse + at + heads, mask=is_head & (part < count), other=float("-inf"))
            mean = tl.load(partial_out + at * DIM + places, mask=is_value & (part < count), other=0.0)
            top, weight, total = fold(top, weight, total, lse, mean)
    if SINKS:
        sink = tl.load(sinks + heads, mask=is_head, other=0.0) * _LOG2_E
        top, weight, total = fold(top, weight, total, sink, tl.zeros([BLOCK_HEADS, DIM_PADDED], tl.float32))
    _, mean = mean_of(top, weight, total)
    tl.store(out + token.to(tl.int64) * out_stride + places, mean.to(out.dtype.element_ty), mask=is_value)
