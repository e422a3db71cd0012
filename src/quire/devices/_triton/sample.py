"""Sampling on the device: the likeliest token, or a draw after temperature, min-p, top-k and top-p.

    _scan    each block of the vocabulary: its largest logit, and the first token that has it
    _count   rows that draw, each block: the sum of weights, and a histogram of distances from the likeliest token
    _gather  rows with top-k or top-p: the likeliest tokens, as many bins as the buffer holds, in order of token ids
    _choose  each row: its token, also stored in the table of last tokens; _choose_likeliest if no row draws

Logits are read three times by many programs, each with a part of the vocabulary; the search is then over a few
thousand candidates in registers. A threshold is found by bisection of a float's bits, so it is exact, and equal logits
at the threshold are kept in the order of their ids, as on the host. If there are too few candidates (a nearly flat
distribution), the row's program searches all logits instead: slower, with the same result.

Sums are computed block by block in one order, for any grid: a row's token does not depend on other rows. A row of -1 is
skipped, so that a captured launch may be larger than its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from quire.devices._triton.chain import LaunchShape, follow, launch
from quire.devices._triton.sample_search import (
    NUM_BINS,
    allowed,
    bin_of,
    bins_that_fit,
    draw_in_block,
    draw_of_all,
    draw_of_candidates,
    is_finite,
    largest_logit,
    likeliest,
    max_distance,
)

NUM_PROGRAMS = 2112  # of a launch: sixteen for each of 132 processors


class SampleSizes(NamedTuple):
    """Compile-time sizes of the kernels."""

    block: int = 4096  # logits at a time
    num_candidates: int = 2048  # in registers of one program


DEFAULT_SIZES = SampleSizes()


class DrawArrays(NamedTuple):
    """The sampling parameters of L entries: `Draws`, on the device."""

    rows: Any  # int32 [L] entry of the table of last tokens; -1: not sampled here
    temperature: Any  # float32 [L]; 0: the likeliest
    top_k: Any  # int32 [L]; 0: all
    top_p: Any  # float32 [L]; 1: all
    min_p: Any  # float32 [L]; 0: all
    chance: Any  # float32 [L]
    mask_of: Any  # int32 [L] its row of `bits`; -1: it has no mask
    bits: Any  # int32 [M, words]; None: no entry has a mask


class SampleBuffers(NamedTuple):
    """The buffers between the kernels, allocated once."""

    tops: Any  # float32 [L, B] the largest logit of every block; infinity if one is NaN
    firsts: Any  # int32 [L, B] the first token that has it
    sums: Any  # float32 [L, B] sums of weights
    bins: Any  # int32 [L, B, NUM_BINS] counts of tokens by their distance from the likeliest
    found: Any  # float32 [L, C] differences of the candidates' logits from the largest
    found_ids: Any  # int32 [L, C]
    num_found: Any  # int32 [L, 2] numbers of candidates, and of all tokens that are left
    sizes: SampleSizes

    @classmethod
    def of(cls, max_entries: int, vocab_size: int, place: str, sizes: SampleSizes = DEFAULT_SIZES) -> SampleBuffers:
        """Allocate buffers for up to `max_entries`."""
        blocks = triton.cdiv(vocab_size, sizes.block)

        def zeros(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(max_entries, *shape, dtype=dtype, device=place)

        return cls(
            tops=zeros(blocks, dtype=torch.float32),
            firsts=zeros(blocks),
            sums=zeros(blocks, dtype=torch.float32),
            bins=zeros(blocks, NUM_BINS.value),
            found=zeros(sizes.num_candidates, dtype=torch.float32),
            found_ids=zeros(sizes.num_candidates),
            num_found=zeros(2),
            sizes=sizes,
        )


def sample_tokens(
    logits: Any, draws: DrawArrays, tokens: Any, last_tokens: Any, buffers: SampleBuffers, *, is_greedy: bool = False
) -> None:
    """Sample from logits [L, vocab], float32 or bfloat16, into `tokens` [L] and each entry's row of `last_tokens`.

    A token of -1: a logit is NaN or infinite, or no token is left; its row gets the last token 0. `is_greedy`: every
    temperature is 0, so two of the launches are left out.
    """
    num_entries, vocab_size = logits.shape
    if not num_entries:
        return
    block = buffers.sizes.block
    num_blocks = triton.cdiv(vocab_size, block)
    width = triton.cdiv(num_blocks, max(1, min(num_blocks, NUM_PROGRAMS // num_entries)))  # blocks of one program
    grid = (num_entries, triton.cdiv(num_blocks, width))
    bits = draws.mask_of[:, None] if draws.bits is None else draws.bits  # a placeholder that is not read
    source = (logits, logits.stride(0), vocab_size, draws.mask_of, bits, bits.stride(0))
    one, many = LaunchShape(1), LaunchShape(8)
    shape = {"BLOCK": block, "BLOCKS": triton.next_power_of_2(num_blocks)}
    launch(_scan, grid, (*source, draws.rows, buffers.tops, buffers.firsts, width), {"BLOCK": block}, many)
    if is_greedy:
        into = (draws.rows, buffers.tops, buffers.firsts, tokens, last_tokens, num_blocks)
        launch(_choose_likeliest, (num_entries,), into, {"BLOCKS": shape["BLOCKS"]}, one)
    else:
        shape = {"CANDIDATES": buffers.sizes.num_candidates} | shape
        params = (draws.rows, draws.temperature, draws.min_p)
        launch(_count, grid, (*source, *params, buffers.tops, buffers.sums, buffers.bins, width), shape, many)
        cuts = (draws.top_k, draws.top_p, buffers.bins, buffers.found, buffers.found_ids, buffers.num_found)
        launch(_gather, grid, (*source, *params, buffers.tops, *cuts, width), shape, many)
        out = (*buffers[:3], *buffers[4:7], tokens, last_tokens)
        launch(_choose, (num_entries,), (*source, *draws[:6], *out), shape, many)


@triton.jit(do_not_specialize=["bits_stride", "width"])
def _scan(
    logits, stride, vocab, mask_of, bits, bits_stride, rows, tops, firsts, width, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    follow(CHAINED)
    entry = tl.program_id(0)
    if tl.load(rows + entry) >= 0:
        num_blocks = tl.cdiv(vocab, BLOCK)
        mask_row = tl.load(mask_of + entry)
        for block in range(tl.program_id(1) * width, min((tl.program_id(1) + 1) * width, num_blocks)):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = allowed(logits, stride, vocab, entry, mask_row, bits, bits_stride, ids)
            x = tl.where(x != x, float("inf"), x)
            top = tl.max(x, 0)
            first = tl.min(tl.where(x == top, ids, 2147483647), 0)
            tl.store(tops + entry * num_blocks + block, top)
            tl.store(firsts + entry * num_blocks + block, first)


@triton.jit
def _choose_likeliest(
    rows, tops, firsts, tokens, last_tokens, num_blocks, BLOCKS: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    follow(CHAINED)
    entry = tl.program_id(0)
    row = tl.load(rows + entry)
    top = largest_logit(tops, entry, num_blocks, BLOCKS)
    token = -1
    if (row >= 0) & is_finite(top):
        token = likeliest(tops, firsts, entry, num_blocks, top, BLOCKS)
    tl.store(tokens + entry, token)
    tl.store(last_tokens + row, tl.maximum(token, 0), mask=row >= 0)


@triton.jit(do_not_specialize=["bits_stride", "width"])
def _count(
    logits, stride, vocab, mask_of, bits, bits_stride, rows, temperature, min_p, tops, sums, bins, width,
    CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    follow(CHAINED)
    entry = tl.program_id(0)
    heat = tl.load(temperature + entry)
    num_blocks = tl.cdiv(vocab, BLOCK)
    top = largest_logit(tops, entry, num_blocks, BLOCKS)
    if (tl.load(rows + entry) >= 0) & (heat > 0.0) & is_finite(top):
        mask_row = tl.load(mask_of + entry)
        most = max_distance(tl.load(min_p + entry))
        for block in range(tl.program_id(1) * width, min((tl.program_id(1) + 1) * width, num_blocks)):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = allowed(logits, stride, vocab, entry, mask_row, bits, bits_stride, ids)
            distance = (top - x) / heat
            is_left = (distance <= most) & (x > float("-inf"))
            tl.store(sums + entry * num_blocks + block, tl.sum(tl.where(is_left, tl.exp(-distance), 0.0), 0))
            counts = tl.histogram(bin_of(top - x), NUM_BINS, mask=is_left)
            places = (entry * num_blocks + block) * NUM_BINS + tl.arange(0, NUM_BINS)
            tl.store(bins + places, counts)


@triton.jit(do_not_specialize=["bits_stride", "width"])
def _gather(
    logits, stride, vocab, mask_of, bits, bits_stride, rows, temperature, min_p, tops,
    top_k, top_p, bins, found, found_ids, num_found, width,
    CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    follow(CHAINED)
    entry = tl.program_id(0)
    heat = tl.load(temperature + entry)
    is_cut = (tl.load(top_k + entry) > 0) | (tl.load(top_p + entry) < 1.0)
    num_blocks = tl.cdiv(vocab, BLOCK)
    top = largest_logit(tops, entry, num_blocks, BLOCKS)
    if (tl.load(rows + entry) >= 0) & (heat > 0.0) & is_cut & is_finite(top):
        mask_row = tl.load(mask_of + entry)
        most = max_distance(tl.load(min_p + entry))
        counts, total, num_bins = bins_that_fit(bins, entry, num_blocks, CANDIDATES, BLOCKS)
        if tl.program_id(1) == 0:
            tl.store(num_found + entry * 2, tl.sum(counts, 0))
            tl.store(num_found + entry * 2 + 1, total)
        for block in range(tl.program_id(1) * width, min((tl.program_id(1) + 1) * width, num_blocks)):
            ids = block * BLOCK + tl.arange(0, BLOCK)
            x = allowed(logits, stride, vocab, entry, mask_row, bits, bits_stride, ids)
            is_left = ((top - x) / heat <= most) & (x > float("-inf")) & (bin_of(top - x) < num_bins)
            before = tl.sum(tl.where(tl.arange(0, BLOCKS) < block, counts, 0), 0)
            places = entry * CANDIDATES + before + tl.cumsum(is_left.to(tl.int32), 0) - 1
            tl.store(found + places, top - x, mask=is_left)
            tl.store(found_ids + places, ids, mask=is_left)


@triton.jit(do_not_specialize=["bits_stride"])
def _choose(
    logits, stride, vocab, mask_of, bits, bits_stride, rows, temperature, top_k, top_p, min_p, chance,
    tops, firsts, sums, found, found_ids, num_found, tokens, last_tokens,
    CANDIDATES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    follow(CHAINED)
    entry = tl.program_id(0)
    row = tl.load(rows + entry)
    token = -1
    if row >= 0:
        num_blocks = tl.cdiv(vocab, BLOCK)
        top = largest_logit(tops, entry, num_blocks, BLOCKS)
        heat = tl.load(temperature + entry)
        k, p = tl.load(top_k + entry), tl.load(top_p + entry)
        luck = tl.load(chance + entry)
        if is_finite(top):
            if heat == 0.0:
                token = likeliest(tops, firsts, entry, num_blocks, top, BLOCKS)
            else:
                at = tl.arange(0, BLOCKS)
                mask_row, most = tl.load(mask_of + entry), max_distance(tl.load(min_p + entry))
                source = (logits, stride, vocab, entry, mask_row, bits, bits_stride, top, heat, most)
                weights = tl.load(sums + entry * num_blocks + at, mask=at < num_blocks, other=0.0)
                if (k <= 0) & (p >= 1.0):
                    token = draw_in_block(source, weights, luck, BLOCK, BLOCKS)
                else:
                    token = draw_of_candidates(
                        found + entry * CANDIDATES, found_ids + entry * CANDIDATES, tl.load(num_found + entry * 2),
                        tl.load(num_found + entry * 2 + 1), heat, k, p, tl.sum(weights, 0), luck, CANDIDATES,
                    )  # fmt: skip
                    if token < 0:
                        token = draw_of_all(source, k, p, luck, BLOCK)
        tl.store(last_tokens + row, tl.maximum(token, 0))
    tl.store(tokens + entry, token)
