"""Routing: the logits of all experts, the choice, its weights, and the grouping of tokens by expert.

Few tokens, in one kernel: every program computes the logits of some experts, and the one that finishes last chooses
for all tokens and groups them. It may begin with the RMS norm of the tokens, which is written too: experts read it.
Many tokens: a program chooses for some tokens, and counts the pairs of each expert; `group_pairs` does the rest.
Logits are sums in float32 of products with the weight as it is stored. Of equal experts the smaller index is chosen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .elementwise import tanh
from .grouping import TOKENS, Grouping, empty_counts, write_pairs, write_tiles
from .norm import Norm
from .stream import Scratch

ROWS = 16  # experts of a program of the kernel for few
MAX_BYTES = 32 << 10  # of the weight, at a time
NOTHING = tl.constexpr(float("-inf"))
LEAST = tl.constexpr(-(1 << 63))  # less than the key of any number


class ExpertRouter(NamedTuple):
    """How experts are chosen; see ops/route.py. Vectors are float32 [experts]."""

    weight: Tensor  # [experts, dim], of the tokens' format or float32
    bias: Tensor | None
    correction: Tensor | None
    expert_scale: Tensor | None
    top: int
    scoring: str
    scores_chosen: bool
    groups: int  # 1: experts of all groups can be chosen
    top_groups: int
    group_top: int
    renormalize: bool
    factor: float
    softcap: float

    @property
    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for, in the order of their parameters."""
        has_groups = self.top_groups < self.groups
        return {
            "E": len(self.weight),
            "EP": triton.next_power_of_2(len(self.weight)),
            "K": self.weight.shape[1],
            "BK": self._columns(512 // self.weight.element_size()),
            "TOP": self.top,
            "SCORING": self.scoring,
            "CHOSEN": self.scores_chosen,
            "GROUPS": self.groups if has_groups else 1,
            "TOP_GROUPS": self.top_groups,
            "GROUP_TOP": self.group_top,
            "NORMALIZE": self.renormalize,
            "SOFTCAP": self.softcap != 0,
        }

    def _columns(self, most: int) -> int:
        """Return how many columns of the weight are read at a time."""
        return next((each for each in (256, 128, 64, 32) if each <= most and self.weight.shape[1] % each == 0), 16)

    @property
    def constants_of_many(self) -> dict[str, Any]:
        """Those of the kernel for many tokens, whose programs hold columns of all experts."""
        numbers = self.constants["EP"] * self.weight.element_size()
        return self.constants | {"BK": self._columns(MAX_BYTES // numbers)}


class RoutingResult(NamedTuple):
    """The chosen experts, best first, and what is known of their grouping."""

    weights: Tensor  # float32 [T, top]
    chosen: Tensor  # int32 [T, top]
    grouping: Grouping | None = None  # of few tokens
    counts: Tensor | None = None  # of many tokens; see `count_pairs`


@triton.jit
def _keys(x, at):
    """Return integers that are ordered as the numbers x, and of equal ones with the smaller index `at` last."""
    x = tl.where(x == 0.0, 0.0, tl.where(x == x, x, NOTHING))  # no -0; what is not a number comes last
    bits = x.to(tl.int32, bitcast=True)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return (bits.to(tl.int64) << 32) | ((~at).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _largest(keys):
    """Return each row's index and number of the largest key."""
    best = tl.max(keys, 1)
    bits = (best >> 32).to(tl.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return ~best.to(tl.int32), bits.to(tl.float32, bitcast=True)


@triton.jit
def _scores(x, is_there, SCORING: tl.constexpr):
    """The scores of logits [rows, experts]; see ops/route.py."""
    if SCORING == "softmax":
        x = tl.where(is_there, x, NOTHING)
        e = tl.exp(x - tl.max(x, 1)[:, None])
        y = e / tl.sum(e, 1)[:, None]
    elif SCORING == "sigmoid":
        y = tl.sigmoid(x)
    elif SCORING == "sqrt_softplus":
        e = tl.exp(-tl.abs(x))
        small = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * 0.25)))  # of log(1 + e), which would lose digits
        y = tl.sqrt(tl.maximum(x, 0.0) + tl.where(e < 0.01, small, tl.log(1.0 + e)))
    else:
        tl.static_assert(SCORING == "none", "the kernel lacks a kind of scores")
        y = x
    return y


@triton.jit
def _within_groups(keys, e, E: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr):
    """Return the keys of the experts in the best groups: a group counts by the sum of its GROUP_TOP best."""
    SIZE: tl.constexpr = E // GROUPS
    GP: tl.constexpr = triton.next_power_of_2(GROUPS)
    group = tl.arange(0, GP)[None, :]
    sums = tl.zeros([keys.shape[0], GP], tl.float32)
    for g in range(GROUPS):
        inside = tl.where(e // SIZE == g, keys, LEAST)
        total = tl.zeros([keys.shape[0]], tl.float32)
        for _ in tl.static_range(GROUP_TOP):
            at, best = _largest(inside)
            inside = tl.where(e == at[:, None], LEAST, inside)
            total += best
        sums = tl.where(group == g, total[:, None], sums)
    of_groups = tl.where(group < GROUPS, _keys(sums, group), LEAST)
    allowed = tl.full(keys.shape, LEAST, tl.int64)
    for _ in tl.static_range(TOP_GROUPS):
        at, best = _largest(of_groups)
        of_groups = tl.where(group == at[:, None], LEAST, of_groups)
        allowed = tl.where(e // SIZE == at[:, None], keys, allowed)
    return allowed


@triton.jit
def _choose(
    logits, correction, expert_scale, factor, E: tl.constexpr, EP: tl.constexpr, TOP: tl.constexpr,
    SCORING: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUP_TOP: tl.constexpr, NORMALIZE: tl.constexpr, CORRECTION: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Choose by logits [tokens, EP]. Return weights and experts in the first TOP columns of [tokens, EP], and 1 + each
    expert's rank or 0. All have one shape, so that numbers stay with their threads."""
    e = tl.arange(0, EP)[None, :]
    is_there = e < E
    scores = logits if CHOSEN else _scores(logits, is_there, SCORING)
    ranked = scores
    if CORRECTION:
        ranked += tl.load(correction + tl.arange(0, EP), mask=tl.arange(0, EP) < E, other=0.0)[None, :]
    keys = tl.where(is_there, _keys(ranked, e), LEAST)
    if GROUPS > 1:
        keys = _within_groups(keys, e, E, GROUPS, TOP_GROUPS, GROUP_TOP)
    weights = tl.zeros([logits.shape[0], EP], tl.float32)
    experts = tl.zeros([logits.shape[0], EP], tl.int32)
    ranks = tl.zeros([logits.shape[0], EP], tl.int32)
    for rank in range(TOP):
        at, best = _largest(keys)
        is_it = e == at[:, None]
        if CORRECTION:
            best = tl.sum(tl.where(is_it, scores, 0.0), 1)
        keys = tl.where(is_it, LEAST, keys)
        ranks = tl.where(is_it, rank + 1, ranks)
        weights = tl.where(e == rank, best[:, None], weights)
        experts = tl.where(e == rank, at[:, None], experts)
    is_rank = e < TOP
    if CHOSEN:
        weights = tl.where(is_rank, _scores(weights, is_rank, SCORING), 0.0)
    if NORMALIZE:
        weights = weights / (tl.sum(weights, 1)[:, None] + 1e-20)
    weights *= factor
    if SCALE:
        weights *= tl.load(expert_scale + experts)
    return weights, experts, ranks


@triton.jit(do_not_specialize=["T"])
def _route(
    x, weight, bias, correction, expert_scale, weights, chosen, counts, T, factor, softcap, E: tl.constexpr,
    EP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, TOP: tl.constexpr,
    SCORING: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUP_TOP: tl.constexpr, NORMALIZE: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    CORRECTION: tl.constexpr, SCALE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    tokens = program * TOKENS + tl.arange(0, TOKENS)
    is_there = tokens < T
    e = tl.arange(0, EP)
    rows = tl.minimum(e, E - 1)
    k = tl.arange(0, BK)
    at = x + tokens.to(tl.int64)[:, None] * K + k[None, :]
    follow(CHAINED)
    acc = tl.zeros([TOKENS, EP], tl.float32)
    for start in tl.range(0, K, BK):
        mask = is_there[:, None] & (start + k < K)[None, :]
        w = tl.load(weight + rows[None, :] * K + start + k[:, None], mask=(start + k < K)[:, None], other=0.0)
        a = tl.load(at + start, mask=mask, other=0.0).to(w.dtype)
        acc = tl.dot(a, w, acc, input_precision="ieee")
    acc = _limited(acc, bias, rows, softcap, BIAS, SOFTCAP)
    chosen_weights, ids, ranks = _choose(
        acc, correction, expert_scale, factor, E, EP, TOP, SCORING, CHOSEN, GROUPS, TOP_GROUPS, GROUP_TOP,
        NORMALIZE, CORRECTION, SCALE,
    )  # fmt: skip
    _write_choice(weights, chosen, chosen_weights, ids, tokens, is_there, TOP, EP)
    is_chosen = (ranks > 0) & is_there[:, None]
    tl.store(counts + program * EP + e, tl.sum(is_chosen.to(tl.int32), 0))


@triton.jit
def _limited(logits, bias, rows, softcap, BIAS: tl.constexpr, SOFTCAP: tl.constexpr):
    if BIAS:
        logits += tl.load(bias + rows)[None, :]
    if SOFTCAP:
        logits = softcap * tanh(logits / softcap)
    return logits


@triton.jit
def _write_choice(weights, chosen, numbers, ids, tokens, is_there, TOP: tl.constexpr, EP: tl.constexpr):
    r = tl.arange(0, EP)[None, :]
    at = tokens[:, None] * TOP + r
    mask = is_there[:, None] & (r < TOP)
    tl.store(weights + at, numbers, mask=mask)
    tl.store(chosen + at, ids, mask=mask)


@triton.jit(do_not_specialize=["T"])
def _route_few(
    x, norm, weight, bias, correction, expert_scale, weights, chosen, normed, logits, arrived, pairs, experts, ends,
    used, T, eps, factor, softcap, E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    TOP: tl.constexpr, SCORING: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr, NORMALIZE: tl.constexpr, SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr, CORRECTION: tl.constexpr, SCALE: tl.constexpr, NORM: tl.constexpr, BE: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    tokens = tl.arange(0, BT)
    is_there = tokens < T
    e = program * BE + tl.arange(0, BE)
    rows = tl.minimum(e, E - 1)
    k = tl.arange(0, BK)
    follow(CHAINED)
    acc = tl.zeros([BE, BT], tl.float32)
    squares = tl.zeros([BT], tl.float32)
    for start in tl.range(0, K, BK):
        columns = start + k
        w = tl.load(weight + rows[:, None] * K + columns[None, :], mask=(columns < K)[None, :], other=0.0)
        mask = is_there[None, :] & (columns < K)[:, None]
        a = tl.load(x + tokens[None, :] * K + columns[:, None], mask=mask, other=0.0)
        if NORM:
            h = a.to(tl.float32)
            squares += tl.sum(h * h, 0)
            a = h * tl.load(norm + columns, mask=columns < K, other=0.0)[:, None]
        acc = tl.dot(w, a.to(w.dtype), acc, input_precision="ieee")
    if NORM:
        rms = tl.rsqrt(squares / K + eps)
        acc *= rms[None, :]
        for start in range(program * BK, K, num_programs * BK):
            columns = start + k
            mask = is_there[:, None] & (columns < K)[None, :]
            at = tokens[:, None] * K + columns[None, :]
            h = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * rms[:, None]
            h *= tl.load(norm + columns, mask=columns < K, other=0.0)[None, :]
            tl.store(normed + at, h.to(normed.dtype.element_ty), mask=mask)
    tl.store(logits + tokens[None, :] * EP + e[:, None], acc, mask=(e < EP)[:, None])
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == num_programs - 1:
        tl.store(arrived, 0)
        every = tl.arange(0, EP)
        exists = (every < E)[None, :] & is_there[:, None]
        all_logits = tl.load(logits + tokens[:, None] * EP + every[None, :], exists, other=0.0, cache_modifier=".cg")
        all_logits = _limited(all_logits, bias, tl.minimum(every, E - 1), softcap, BIAS, SOFTCAP)
        chosen_weights, ids, ranks = _choose(
            all_logits, correction, expert_scale, factor, E, EP, TOP, SCORING, CHOSEN, GROUPS, TOP_GROUPS,
            GROUP_TOP, NORMALIZE, CORRECTION, SCALE,
        )  # fmt: skip
        _write_choice(weights, chosen, chosen_weights, ids, tokens, is_there, TOP, EP)
        ranks = tl.where(is_there[:, None], ranks, 0)
        total = tl.sum((ranks > 0).to(tl.int32), 0)
        places = write_tiles(total, experts, ends, used, 0, 1, T, BM, EP)
        write_pairs(pairs, ranks, places, tokens, TOP)


def route(x: Tensor, router: ExpertRouter) -> RoutingResult:
    """Choose experts for any number of tokens x [T, dim]."""
    tokens, vectors = len(x), (router.bias, router.correction, router.expert_scale)
    choice = _empty(tokens, router, x.device)
    counts = empty_counts(tokens, len(router.weight), x.device)
    args = (x, router.weight, *vectors, *choice[:2], counts, tokens, router.factor, router.softcap)
    constants = router.constants_of_many | _has(router)
    warps = _warps(TOKENS.value * constants["EP"])
    launch(_route, (triton.cdiv(tokens, TOKENS.value),), args, constants, LaunchShape(warps, 4))
    return choice._replace(counts=counts)


def route_few(
    x: Tensor, norm: Norm | None, router: ExpertRouter, scratch: Scratch, height: int
) -> tuple[RoutingResult, Tensor]:
    """Choose experts for few tokens x [T, dim], after an RMS norm if there is one; return x, normed, too.

    height: of the tiles of the grouping.
    """
    tokens, vectors = len(x), (router.bias, router.correction, router.expert_scale)
    choice = _empty(tokens, router, x.device)
    normed = x if norm is None else torch.empty_like(x)
    grouping = Grouping.empty(tokens, router.top, len(router.weight), height, x.device)
    weight, eps = (None, 0.0) if norm is None else norm[:2]
    args = (
        x, weight, router.weight, *vectors, *choice[:2], normed, scratch.partial, scratch.arrived, *grouping[:4],
        tokens, eps, router.factor, router.softcap,
    )  # fmt: skip
    constants = router.constants | _has(router) | {"NORM": norm is not None, "BE": ROWS}
    constants |= {"BT": max(16, triton.next_power_of_2(tokens)), "BM": height}
    shape = LaunchShape(_warps(constants["BT"] * constants["EP"]), 4 if tokens <= 16 else 3)
    launch(_route_few, (triton.cdiv(len(router.weight), ROWS),), args, constants, shape)
    return choice._replace(grouping=grouping), normed


def _empty(tokens: int, router: ExpertRouter, device: torch.device) -> RoutingResult:
    weights = torch.empty((tokens, router.top), dtype=torch.float32, device=device)
    return RoutingResult(weights, torch.empty((tokens, router.top), dtype=torch.int32, device=device))


def _warps(num_logits: int) -> int:
    """Return the warps of a program that chooses by so many logits, 32 for each thread at most."""
    return min(max(triton.next_power_of_2(num_logits) // 1024, 4), 16)


def _has(router: ExpertRouter) -> dict[str, bool]:
    return {
        "BIAS": router.bias is not None,
        "CORRECTION": router.correction is not None,
        "SCALE": router.expert_scale is not None,
    }
