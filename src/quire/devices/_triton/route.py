"""Routing: the logits of all experts, the choice, its weights, and the grouping of tokens by expert.

Few tokens: one kernel computes the logits of some experts over some columns in each program; another chooses for one
token in each; a third groups them. The first two may apply the RMS norm of the tokens, which is written too: experts
read it. Many tokens: a program chooses for some tokens, and counts the pairs of each expert; `group_pairs` does the
rest.
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
from .grouping import TOKENS, Grouping, empty_counts, write_tiles
from .norm import Norm
from .stream import Scratch

ROWS = 16  # experts of a program of the kernel for few
FEW_COLUMNS = 512  # bytes of a row of the weight in such a program
COLUMNS = tl.constexpr(1024)  # of a token that are normed at a time
PAIRS = tl.constexpr(32)  # that a program of few tokens groups
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
def _few_logits(
    x, norm, weight, logits, squares, T, E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    NORM: tl.constexpr, BE: tl.constexpr, BT: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The products of BE experts with BK columns of all tokens, [shares of columns, tokens, EP]; of the first experts
    also the sums of the tokens' squares, [shares, tokens]."""
    share = tl.program_id(1)
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    k = share * BK + tl.arange(0, BK)
    is_column = k < K
    w = tl.load(weight + tl.minimum(e, E - 1)[:, None] * K + k[None, :], mask=is_column[None, :], other=0.0)
    scale = tl.full([BK], 1.0, tl.float32)
    if NORM:
        scale = tl.load(norm + k, mask=is_column, other=0.0).to(tl.float32)
    follow(CHAINED)
    tokens = tl.arange(0, BT)
    is_there = tokens < T
    a = tl.load(x + tokens[None, :] * K + k[:, None], mask=is_there[None, :] & is_column[:, None], other=0.0)
    if NORM:
        h = a.to(tl.float32)
        if tl.program_id(0) == 0:
            tl.store(squares + share * T + tokens, tl.sum(h * h, 0), mask=is_there)
        a = (h * scale[:, None]).to(w.dtype)
    acc = tl.dot(w, a.to(w.dtype), input_precision="ieee")
    to = logits + (share * T + tokens)[None, :] * EP + e[:, None]
    tl.store(to, acc, mask=is_there[None, :] & (e < EP)[:, None])


@triton.jit(do_not_specialize=["T"])
def _few_choices(
    x, norm, logits, squares, bias, correction, expert_scale, weights, chosen, normed, T, eps, factor, softcap,
    E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, SCORING: tl.constexpr,
    CHOSEN: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr,
    NORMALIZE: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr, CORRECTION: tl.constexpr, SCALE: tl.constexpr,
    NORM: tl.constexpr, SHARES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The choice of one token."""
    token = tl.program_id(0)
    follow(CHAINED)
    every, share = tl.arange(0, EP), tl.arange(0, triton.next_power_of_2(SHARES))
    is_part = (share < SHARES)[:, None] & (every < E)[None, :]
    parts = tl.load(logits + (share * T + token)[:, None] * EP + every[None, :], mask=is_part, other=0.0)
    total = tl.sum(parts, 0)
    if NORM:
        sums = tl.load(squares + share * T + token, mask=share < SHARES, other=0.0)
        rms = tl.rsqrt(tl.sum(sums, 0) / K + eps)
        total *= rms
        for start in range(0, K, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            h = tl.load(x + token * K + columns, mask=columns < K, other=0.0).to(tl.float32) * rms
            h *= tl.load(norm + columns, mask=columns < K, other=0.0)
            tl.store(normed + token * K + columns, h.to(normed.dtype.element_ty), mask=columns < K)
    all_logits = _limited(total[None, :], bias, tl.minimum(every, E - 1), softcap, BIAS, SOFTCAP)
    numbers, ids, _ = _choose(
        all_logits, correction, expert_scale, factor, E, EP, TOP, SCORING, CHOSEN, GROUPS, TOP_GROUPS, GROUP_TOP,
        NORMALIZE, CORRECTION, SCALE,
    )  # fmt: skip
    one = token + tl.arange(0, 1)
    _write_choice(weights, chosen, numbers, ids, one, one < T, TOP, EP)


@triton.jit(do_not_specialize=["T"])
def _few_groups(
    chosen, pairs, experts, ends, used, T, TOP: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr, MOST: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Group all pairs by expert: every program counts them all, and finds the places of some."""
    program = tl.program_id(0)
    every, mine = tl.arange(0, MOST), program * PAIRS + tl.arange(0, PAIRS)
    follow(CHAINED)
    ids = tl.load(chosen + every, mask=every < T * TOP, other=-1)
    own = tl.load(chosen + mine, mask=mine < T * TOP, other=-1)
    total = tl.histogram(ids, EP, mask=every < T * TOP)
    places = write_tiles(total, experts, ends, used, program, tl.num_programs(0), T, BM, EP)
    is_earlier = (ids[None, :] == own[:, None]) & (every[None, :] < mine[:, None])
    start = tl.sum(tl.where(tl.arange(0, EP)[None, :] == own[:, None], places[None, :], 0), 1)
    tl.store(pairs + start + tl.sum(is_earlier.to(tl.int32), 1), mine, mask=mine < T * TOP)


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
    tokens, (num_experts, columns) = len(x), router.weight.shape
    choice = _empty(tokens, router, x.device)
    normed = x if norm is None else torch.empty_like(x)
    grouping = Grouping.empty(tokens, router.top, num_experts, height, x.device)
    weight, eps = (None, 0.0) if norm is None else norm[:2]
    constants = router.constants
    size, padded = FEW_COLUMNS // router.weight.element_size(), constants["EP"]
    num_shares, most = triton.cdiv(columns, size), max(16, triton.next_power_of_2(tokens))
    logits, squares = scratch.partial, scratch.partial[num_shares * tokens * padded :]
    has = {"NORM": norm is not None}
    sizes = {"E": num_experts, "EP": padded, "K": columns, "BK": size, **has, "BE": ROWS, "BT": most}
    args: tuple[Any, ...] = (x, weight, router.weight, logits, squares, tokens)
    launch(_few_logits, (triton.cdiv(num_experts, ROWS), num_shares), args, sizes, LaunchShape(4, 1))
    args = (
        x, weight, logits, squares, router.bias, router.correction, router.expert_scale, *choice[:2], normed, tokens,
        eps, router.factor, router.softcap,
    )  # fmt: skip
    del constants["BK"]
    launch(_few_choices, (tokens,), args, constants | _has(router) | has | {"SHARES": num_shares}, LaunchShape(4, 1))
    args, num_pairs = (choice.chosen, *grouping[:4], tokens), tokens * router.top
    sizes = {"TOP": router.top, "EP": padded, "BM": height, "MOST": triton.next_power_of_2(most * router.top)}
    launch(_few_groups, (triton.cdiv(num_pairs, PAIRS.value),), args, sizes, LaunchShape(4, 1))
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
