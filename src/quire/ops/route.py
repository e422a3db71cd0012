"""Routing: which experts a token is sent to, and with which weights. Computed in float32 on every device.

Logits are x times the transpose of `weight`, plus `bias`, softcapped. Scores are a function of them (SCORING). Experts
are chosen by score + `correction`, which changes the choice and not the weights. With groups, experts are adjacent in
groups of one size; a group counts by the sum of its `group_top` best, and only experts of the `top_groups` best groups
can be chosen. Of equal ones, the smaller index is chosen, for groups and for experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from quire.ops.linear import product_of, product_shape
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op

SMALLEST_SUM = np.float32(1e-20)  # added to the divisor of renormalized weights


def _softmax(x: Array) -> Array:
    exponents = np.exp(x - x.max(-1, keepdims=True))
    out: Array = exponents / exponents.sum(-1, keepdims=True)
    return out


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))


def _sqrt_softplus(x: Array) -> Array:
    out: Array = np.sqrt(np.logaddexp(x, np.float32(0.0)))
    return out


SCORING: dict[str, Callable[[Array], Array]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "sqrt_softplus": _sqrt_softplus,
    "none": lambda x: x,
}


@op(weights=("weight", "bias", "correction", "expert_scale"), tolerance={"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2})
def route(
    x: Array, weight: Array, bias: Array | None, correction: Array | None, expert_scale: Array | None,
    *, top: int, scoring: str, scores_chosen: bool = False, groups: int = 1, top_groups: int = 1, group_top: int = 1,
    renormalize: bool = False, factor: float = 1.0, softcap: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """x [T, dim], weight [experts, dim]: the weights and the numbers of the chosen experts, float32 [T, top] each.

    The best expert is first. With `scores_chosen`, experts are chosen by their logits, and scores are computed of the
    chosen logits alone. Weights are scores, divided by their sum with `renormalize`, times `factor`, times the chosen
    entries of `expert_scale`.
    """
    logits = product_of(x, weight, bias)
    if softcap:
        logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
    scores = logits if scores_chosen else SCORING[scoring](logits)
    ranked = scores if correction is None else scores + correction
    if top_groups < groups:
        ranked = _within_groups(ranked, groups, top_groups, group_top)
    chosen = _largest(ranked, top)
    weights = np.take_along_axis(scores, chosen, -1)
    if scores_chosen:
        weights = SCORING[scoring](weights)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdims=True) + SMALLEST_SUM)
    weights = weights * np.float32(factor)
    if expert_scale is not None:
        weights = weights * expert_scale[chosen]
    return weights.astype(np.float32), chosen.astype(np.float32)


def _largest(x: Array, top: int) -> Array:
    """Indices of the largest numbers of each row, in descending order; of equal ones, the smaller index."""
    return np.argsort(-x, axis=-1, kind="stable")[:, :top]


def _within_groups(ranked: Array, groups: int, top_groups: int, group_top: int) -> Array:
    """Set the experts of all but the best groups to minus infinity."""
    grouped = ranked.reshape(len(ranked), groups, -1)
    best = -np.sort(-grouped, axis=-1)[..., :group_top].sum(-1)  # [T, groups]
    allowed = np.zeros(best.shape, bool)
    np.put_along_axis(allowed, _largest(best, top_groups), True, -1)
    out: Array = np.where(allowed[..., None], grouped, np.float32(-np.inf)).reshape(ranked.shape)
    return out


@route.shape
def _(
    x: Shape, weight: Shape, bias: Shape | None, correction: Shape | None, expert_scale: Shape | None,
    *, top: int, scoring: str, scores_chosen: bool = False, groups: int = 1, top_groups: int = 1, group_top: int = 1,
    renormalize: bool = False, factor: float = 1.0, softcap: float = 0.0,
) -> list[Shape]:  # fmt: skip
    num_tokens, num_experts = product_shape(x, weight, bias)
    for name, shape in (("correction", correction), ("expert_scale", expert_scale)):
        if shape is not None:
            expect(name, shape, num_experts)
    allowed = int(num_experts) // groups * min(top_groups, groups)
    if int(num_experts) % groups or not 1 <= top <= allowed or group_top > int(num_experts) // groups:
        raise ShapeError("weight", (f"experts for {top} of {top_groups} of {groups} groups", x[1]), weight)
    return [(num_tokens, top), (num_tokens, top)]


@route.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for scoring, scores_chosen, correction in product(SCORING, (False, True), (False, True)):
        if not (scores_chosen and correction):
            yield _example(make, 7, (16, 4), scoring=scoring, scores_chosen=scores_chosen, correction=correction)
    for num_tokens, group_top in product((1, 65), (1, 2)):
        groups = {"groups": 4, "top_groups": 2, "group_top": group_top}
        yield _example(make, num_tokens, (32, 6), scoring="sigmoid", correction=True, **groups, renormalize=True)
    yield _example(make, 33, (128, 8), scoring="softmax", renormalize=True, factor=2.5, softcap=3.0)
    yield _example(make, 9, (5, 1), scoring="sigmoid", scores_chosen=True, bias=True)
    yield _example(make, 9, (6, 6), scoring="softmax", scores_chosen=True, bias=True, expert_scale=True)
    ties = _example(make, 3, (8, 3), scoring="softmax")
    yield {**ties, "weight": np.zeros_like(ties["weight"])}


def _example(make: ArrayMaker, num_tokens: int, choice: tuple[int, int], **given: Any) -> Args:
    """`choice`: experts, and how many are chosen."""
    num_experts, top = choice
    vectors = {
        name: make(num_experts) if given.pop(name, False) else None for name in ("bias", "correction", "expert_scale")
    }
    return {"x": make(num_tokens, 64), "weight": make(num_experts, 64), **vectors, "top": top, **given}
