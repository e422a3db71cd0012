"""Choosing tokens where their logits are: the likeliest, or drawn from what temperature, min-p, top-k and top-p leave.

    _scan    each block of the vocabulary: its largest logit, and the first token that has it
    _count   of rows that draw, each block: the sum of weights, and how many tokens are how far below the likeliest
    _gather  of rows with top-k or top-p: the likeliest tokens, as many bins of them as the buffer takes, by token id
    _choose  each row: its token, and the same into the table of last tokens; _choose_likeliest where none draws

Logits are read three times by many programs at once, a part of the vocabulary each; what is searched then is a few
thousand candidates that lie in registers. A threshold is found by bisection of a float's bits, so it is exact, and
equal logits at the threshold are kept in the order of their ids, as the host does. Where the candidates are too few
(a nearly flat distribution), the row's program goes through all logits instead: slow, and the same.

Sums are made block by block in one order, whatever the grid: a row's token does not depend on its company. A row of -1
is skipped, so that a captured launch may be larger than its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from quire.devices._triton.chain import Shape, follow, launch
from quire.devices._triton.sample_search import (
    NUM_BINS,
    allowed,
    bin_of,
    bins_that_fit,
    draw_in_block,
    draw_of_all,
    draw_of_candidates,
    is_finite,
    largest,
    likeliest,
    most_distance,
)

NUM_PROGRAMS = 2112  # that a launch is shared out to: sixteen for each of 132 processors


class Sizes(NamedTuple):
    """What the kernels are compiled for."""

    block: int = 4096  # logits at a time
    num_candidates: int = 2048  # in registers of one program


SERVED = Sizes()


class Rules(NamedTuple):
    """How each of L entries chooses: `Draws`, on the device."""

    rows: Any  # int32 [L] place in the table of last tokens; -1: not here
    temperature: Any  # float32 [L]; 0: the likeliest
    top_k: Any  # int32 [L]; 0: all
    top_p: Any  # float32 [L]; 1: all
    min_p: Any  # float32 [L]; 0: all
    chance: Any  # float32 [L]
    mask_of: Any  # int32 [L] its row of `bits`; -1: it has no mask
    bits: Any  # int32 [M, words]; None: no entry has a mask


class Space(NamedTuple):
    """What the kernels tell each other; made once."""

    tops: Any  # float32 [L, B] of every block the largest logit; infinity if one is not a number
    firsts: Any  # int32 [L, B] the first token that has it
    sums: Any  # float32 [L, B] weights
    bins: Any  # int32 [L, B, NUM_BINS] tokens by their distance from the likeliest
    found: Any  # float32 [L, C] logits of candidates, below the largest by so much
    found_ids: Any  # int32 [L, C]
    num_found: Any  # int32 [L, 2] candidates, and all that they are from
    sizes: Sizes

    @classmethod
    def of(cls, max_entries: int, vocab_size: int, place: str, sizes: Sizes = SERVED) -> Space:
        """Room for so many entries."""
        blocks = triton.cdiv(vocab_size, sizes.block)

        def room(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(max_entries, *shape, dtype=dtype, device=place)

        return cls(
            tops=room(blocks, dtype=torch.float32),
            firsts=room(blocks),
            sums=room(blocks, dtype=torch.float32),
            bins=room(blocks, NUM_BINS.value),
            found=room(sizes.num_candidates, dtype=torch.float32),
            found_ids=room(sizes.num_candidates),
            num_found=room(2),
            sizes=sizes,
        )


def choose(logits: Any, rules: Rules, tokens: Any, last_tokens: Any, space: Space, *, is_greedy: bool = False) -> None:
    """tokens [L], and last_tokens at each entry's row, by logits [L, vocab] of float32 or bfloat16.

    A token of -1: there is none, because a logit is not a number or infinite, or no token is left; 0 is remembered for
    its row. `is_greedy`: the caller knows that every temperature is 0, and two of the launches are left out.
    """
    num_entries, vocab_size = logits.shape
    if not num_entries:
        return
    block = space.sizes.block
    num_blocks = triton.cdiv(vocab_size, block)
    width = triton.cdiv(num_blocks, max(1, min(num_blocks, NUM_PROGRAMS // num_entries)))  # blocks of one program
    grid = (num_entries, triton.cdiv(num_blocks, width))
    bits = rules.mask_of[:, None] if rules.bits is None else rules.bits  # a place that nobody reads
    text = (logits, logits.stride(0), vocab_size, rules.mask_of, bits, bits.stride(0))
    one, many = Shape(1), Shape(8)
    shape = {"BLOCK": block, "BLOCKS": triton.next_power_of_2(num_blocks)}
    launch(_scan, grid, (*text, rules.rows, space.tops, space.firsts, width), {"BLOCK": block}, many)
    if is_greedy:
        into = (rules.rows, space.tops, space.firsts, tokens, last_tokens, num_blocks)
        launch(_choose_likeliest, (num_entries,), into, {"BLOCKS": shape["BLOCKS"]}, one)
    else:
        shape = {"CANDIDATES": space.sizes.num_candidates} | shape
        how = (rules.rows, rules.temperature, rules.min_p)
        launch(_count, grid, (*text, *how, space.tops, space.sums, space.bins, width), shape, many)
        cuts = (rules.top_k, rules.top_p, space.bins, space.found, space.found_ids, space.num_found)
        launch(_gather, grid, (*text, *how, space.tops, *cuts, width), shape, many)
        out = (*space[:3], *space[4:7], tokens, last_tokens)
        launch(_choose, (num_entries,), (*text, *rules[:6], *out), shape, many)


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
    top = largest(tops, entry, num_blocks, BLOCKS)
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
    top = largest(tops, entry, num_blocks, BLOCKS)
    if (tl.load(rows + entry) >= 0) & (heat > 0.0) & is_finite(top):
        mask_row = tl.load(mask_of + entry)
        most = most_distance(tl.load(min_p + entry))
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
    top = largest(tops, entry, num_blocks, BLOCKS)
    if (tl.load(rows + entry) >= 0) & (heat > 0.0) & is_cut & is_finite(top):
        mask_row = tl.load(mask_of + entry)
        most = most_distance(tl.load(min_p + entry))
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
        top = largest(tops, entry, num_blocks, BLOCKS)
        heat = tl.load(temperature + entry)
        k, p = tl.load(top_k + entry), tl.load(top_p + entry)
        luck = tl.load(chance + entry)
        if is_finite(top):
            if heat == 0.0:
                token = likeliest(tops, firsts, entry, num_blocks, top, BLOCKS)
            else:
                at = tl.arange(0, BLOCKS)
                mask_row, most = tl.load(mask_of + entry), most_distance(tl.load(min_p + entry))
                text = (logits, stride, vocab, entry, mask_row, bits, bits_stride, top, heat, most)
                weights = tl.load(sums + entry * num_blocks + at, mask=at < num_blocks, other=0.0)
                if (k <= 0) & (p >= 1.0):
                    token = draw_in_block(text, weights, luck, BLOCK, BLOCKS)
                else:
                    token = draw_of_candidates(
                        found + entry * CANDIDATES, found_ids + entry * CANDIDATES, tl.load(num_found + entry * 2),
                        tl.load(num_found + entry * 2 + 1), heat, k, p, tl.sum(weights, 0), luck, CANDIDATES,
                    )  # fmt: skip
                    if token < 0:
                        token = draw_of_all(text, k, p, luck, BLOCK)
        tl.store(last_tokens + row, tl.maximum(token, 0))
    tl.store(tokens + entry, token)
