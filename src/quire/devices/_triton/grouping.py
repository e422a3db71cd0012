"""Tokens grouped by expert, on the device: which pairs (token, chosen expert) each tile of a product computes.

Pairs are numbered token * top + rank. They get places: those of one expert are adjacent, in the order of tokens, and
begin at a multiple of `height`, so a tile of that many places has one expert. A place that no pair has is skipped.
The number of tiles is known on the device alone; `num_tiles` of the host is the most that there can be.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_work import aligned
from .chain import LaunchShape, follow, launch

TOKENS = tl.constexpr(32)  # of a program


class Grouping(NamedTuple):
    """Where the pairs are."""

    pairs: Tensor  # int32 [num_tiles * height]: the pair of each place
    experts: Tensor  # int32 [num_tiles]: the expert of each tile
    ends: Tensor  # int32 [num_tiles]: the place after the last pair of the tile's expert
    used: Tensor  # int32 [1]: tiles in use
    height: int

    @property
    def num_tiles(self) -> int:
        """The most tiles that there can be."""
        return len(self.experts)

    @classmethod
    def empty(cls, num_tokens: int, top: int, num_experts: int, height: int, device: torch.device) -> Grouping:
        """Allocate the grouping of so many tokens, to be filled by a kernel."""
        num_pairs = num_tokens * top
        num_used = min(num_pairs, num_experts)
        num_tiles = (num_pairs + num_used * (height - 1)) // height
        counts = (num_tiles * height, num_tiles, num_tiles, 1)
        sizes = [aligned(count) for count in counts]
        numbers = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        pairs, experts, ends, used = (
            part[:count] for part, count in zip(numbers.split(sizes), counts, strict=True)
        )  # fmt: skip
        return cls(pairs, experts, ends, used, height)


@triton.jit
def rank_matrix(chosen, tokens, T, TOP: tl.constexpr, EP: tl.constexpr):
    """Return 1 + the rank at which a token has chosen an expert, 0 if it has not: [tokens, EP]."""
    e = tl.arange(0, EP)[None, :]
    is_there = tokens < T
    found = tl.zeros([tokens.shape[0], EP], tl.int32)
    for rank in range(TOP):
        expert = tl.load(chosen + tokens * TOP + rank, mask=is_there, other=-1)
        found = tl.where(e == expert[:, None], rank + 1, found)
    return found


@triton.jit
def write_tiles(total, experts, ends, used, first, step, T, BM: tl.constexpr, EP: tl.constexpr):
    """Write the tiles of all experts, given their numbers of pairs [EP]; return the first place of each.

    Of every expert, this program writes tiles first, first + step, …
    """
    e = tl.arange(0, EP)
    num = (total + BM - 1) // BM
    after = tl.cumsum(num, 0)
    before = after - num
    for tile in range(first, tl.cdiv(T, BM), step):
        tl.store(experts + before + tile, e, mask=tile < num)
        tl.store(ends + before + tile, before * BM + total, mask=tile < num)
    tl.store(used, tl.max(after, 0))
    return before * BM


@triton.jit
def write_pairs(pairs, ranks, start, tokens, TOP: tl.constexpr):
    """Write the pairs of these tokens, given `rank_matrix` [tokens, EP] and each expert's first place [EP] for them."""
    is_chosen = (ranks > 0).to(tl.int32)
    place = start[None, :] + tl.cumsum(is_chosen, 0) - 1
    tl.store(pairs + place, tokens[:, None] * TOP + ranks - 1, mask=ranks > 0)


@triton.jit(do_not_specialize=["T"])
def _count(chosen, counts, T, TOP: tl.constexpr, EP: tl.constexpr, CHAINED: tl.constexpr):
    program = tl.program_id(0)
    follow(CHAINED)
    tokens = program * TOKENS + tl.arange(0, TOKENS)
    ranks = rank_matrix(chosen, tokens, T, TOP, EP)
    tl.store(counts + program * EP + tl.arange(0, EP), tl.sum((ranks > 0).to(tl.int32), 0))


@triton.jit(do_not_specialize=["T", "num_programs"])
def _place(
    chosen, counts, pairs, experts, ends, used, T, num_programs, TOP: tl.constexpr, EP: tl.constexpr,
    BM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    follow(CHAINED)
    tokens = program * TOKENS + tl.arange(0, TOKENS)
    ranks = rank_matrix(chosen, tokens, T, TOP, EP)
    total = tl.zeros([EP], tl.int32)
    before = tl.zeros([EP], tl.int32)  # pairs of earlier programs
    for start in range(0, num_programs, 16):
        others = start + tl.arange(0, 16)[:, None]
        some = tl.load(counts + others * EP + tl.arange(0, EP)[None, :], mask=others < num_programs, other=0)
        total += tl.sum(some, 0)
        before += tl.sum(tl.where(others < program, some, 0), 0)
    start = write_tiles(total, experts, ends, used, program, num_programs, T, BM, EP)
    write_pairs(pairs, ranks, start + before, tokens, TOP)


def empty_counts(num_tokens: int, num_experts: int, device: torch.device) -> Tensor:
    """Allocate the pairs of each expert, for each program: int32 [programs, experts]."""
    shape = triton.cdiv(num_tokens, TOKENS.value), triton.next_power_of_2(num_experts)
    return torch.empty(shape, dtype=torch.int32, device=device)


def count_pairs(chosen: Tensor, num_experts: int) -> Tensor:
    """Count the pairs of each expert, given the experts of each token, int32 [T, top]; see `empty_counts`."""
    tokens, top = chosen.shape
    counts = empty_counts(tokens, num_experts, chosen.device)
    constants = {"TOP": top, "EP": counts.shape[1]}
    launch(_count, (len(counts),), (chosen, counts, tokens), constants, LaunchShape(4))
    return counts


def group_pairs(chosen: Tensor, counts: Tensor, num_experts: int, height: int) -> Grouping:
    """Group the pairs of int32 [T, top], which are counted already."""
    tokens, top = chosen.shape
    found = Grouping.empty(tokens, top, num_experts, height, chosen.device)
    args = (chosen, counts, *found[:4], tokens, len(counts))
    constants = {"TOP": top, "EP": counts.shape[1], "BM": height}
    launch(_place, (len(counts),), args, constants, LaunchShape(4))
    return found


@triton.jit(do_not_specialize=["num_tiles"])
def _count_reads(experts, used, reads, num_tiles, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    follow(CHAINED)
    is_used = (tile < num_tiles) & (tile < tl.load(used))
    expert = tl.load(experts + tile, mask=is_used, other=0)
    tl.atomic_add(reads + expert, 1, mask=is_used, sem="relaxed")


def count_reads(grouping: Grouping, reads: Tensor) -> None:
    """Add to `reads` [experts] how often products of this grouping read each expert."""
    block, num_tiles = 128, grouping.num_tiles
    args = (grouping.experts, grouping.used, reads, num_tiles)
    launch(_count_reads, (triton.cdiv(num_tiles, block),), args, {"BLOCK": block}, LaunchShape(4))
