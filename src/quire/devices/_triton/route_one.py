"""Routing of a single token: every program computes the logits of a few experts from whole rows of the router's matrix,
which it loads before the token is there. The one that finishes last chooses. Each expert's tile is the pair itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .chain import LaunchShape, follow, launch
from .grouping import Grouping
from .norm import Norm
from .route import ExpertRouter, RoutingResult, _choose, _empty, _has, _limited
from .stream import Scratch

ROWS = 4  # experts of a program
MAX_WIDTH = 8192  # numbers of a token: a program holds it and its rows in registers


@triton.jit
def _route_one(
    x, norm, weight, bias, correction, expert_scale, weights, chosen, normed, logits, arrived, pairs, experts, ends,
    used, eps, factor, softcap, E: tl.constexpr, EP: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    TOP: tl.constexpr, SCORING: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUP_TOP: tl.constexpr, NORMALIZE: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    CORRECTION: tl.constexpr, SCALE: tl.constexpr, NORM: tl.constexpr, BE: tl.constexpr, BM: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    e = program * BE + tl.arange(0, BE)
    columns = tl.arange(0, BK)
    is_column = columns < K
    w = tl.load(weight + tl.minimum(e, E - 1)[:, None] * K + columns[None, :], mask=is_column[None, :], other=0.0)
    if NORM:
        scale = tl.load(norm + columns, mask=is_column, other=0.0)
    follow(CHAINED)
    h = tl.load(x + columns, mask=is_column, other=0.0).to(tl.float32)
    if NORM:
        h *= tl.rsqrt(tl.sum(h * h, 0) / K + eps) * scale
        if program == 0:
            tl.store(normed + columns, h.to(normed.dtype.element_ty), mask=is_column)
    tl.store(logits + e, tl.sum(w.to(tl.float32) * h[None, :], 1), mask=e < EP)
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == EP // BE - 1:
        tl.store(arrived, 0)
        every = tl.arange(0, EP)
        all_logits = tl.load(logits + every, every < E, other=0.0, cache_modifier=".cg")[None, :]
        all_logits = _limited(all_logits, bias, tl.minimum(every, E - 1), softcap, BIAS, SOFTCAP)
        numbers, ids, _ = _choose(
            all_logits, correction, expert_scale, factor, E, EP, TOP, SCORING, CHOSEN, GROUPS, TOP_GROUPS,
            GROUP_TOP, NORMALIZE, CORRECTION, SCALE,
        )  # fmt: skip
        r = every[None, :]
        is_rank = r < TOP
        tl.store(weights + r, numbers, mask=is_rank)
        tl.store(chosen + r, ids, mask=is_rank)
        tl.store(experts + r, ids, mask=is_rank)
        tl.store(pairs + r * BM, r, mask=is_rank)
        tl.store(ends + r, r * BM + 1, mask=is_rank)
        tl.store(used, TOP)


def can_route_one(router: ExpertRouter) -> bool:
    """Do the router's rows fit into registers?"""
    return router.weight.shape[1] <= MAX_WIDTH


def route_one(
    x: Tensor, norm: Norm | None, router: ExpertRouter, scratch: Scratch, height: int
) -> tuple[RoutingResult, Tensor]:
    """Choose experts for one token x [1, dim], after an RMS norm if there is one; return x, normed, too.

    `height`: of the tiles of the grouping.
    """
    vectors = (router.bias, router.correction, router.expert_scale)
    choice = _empty(1, router, x.device)
    normed = x if norm is None else torch.empty_like(x)
    grouping = Grouping.empty(1, router.top, len(router.weight), height, x.device)
    weight, eps = (None, 0.0) if norm is None else norm[:2]
    args = (
        x, weight, router.weight, *vectors, *choice[:2], normed, scratch.partial, scratch.arrived, *grouping[:4],
        eps, router.factor, router.softcap,
    )  # fmt: skip
    constants = router.constants | _has(router) | {"NORM": norm is not None, "BE": 0, "BM": height}
    constants["BK"] = triton.next_power_of_2(router.weight.shape[1])
    constants["BE"] = min(ROWS, constants["EP"])
    launch(_route_one, (constants["EP"] // constants["BE"],), args, constants, LaunchShape(4, 1))
    return choice._replace(grouping=grouping), normed
