"""Fused ops around experts. Models never draw these: passes put them in where a device has a kernel (graph/passes).

The reference of each is the composition of the plain ops that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from quire.ops.experts import WEIGHTS, experts
from quire.ops.linear import TOLERANCE
from quire.ops.norm import rms_norm
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op
from quire.ops.route import route


@op(weights=("norm", *route.weights), tolerance=route.tolerance)
def normed_route(
    x: Array, norm: Array, weight: Array, bias: Array | None, correction: Array | None, expert_scale: Array | None,
    *, eps: float, top: int, scoring: str, scores_chosen: bool = False, groups: int = 1, top_groups: int = 1,
    group_top: int = 1, renormalize: bool = False, factor: float = 1.0, softcap: float = 0.0,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """rms_norm(x), which the experts read, and route of it."""
    h: Array = rms_norm(x, norm, eps=eps)
    weights, chosen = route(
        h, weight, bias, correction, expert_scale, top=top, scoring=scoring, scores_chosen=scores_chosen,
        groups=groups, top_groups=top_groups, group_top=group_top, renormalize=renormalize, factor=factor,
        softcap=softcap,
    )  # fmt: skip
    return h, weights, chosen


@op(weights=WEIGHTS, tolerance=TOLERANCE)
def experts_add(
    x: Array, weights: Array, chosen: Array, residual: Array, gate: Array | None, up: Array, down: Array,
    gate_bias: Array | None, up_bias: Array | None, down_bias: Array | None,
    *, kind: str, limit: float = 0.0, alpha: float = 1.0, shift: float = 0.0, on_input: bool = False,
) -> Array:  # fmt: skip
    """residual [T, dim] + experts(x)."""
    answer: Array = experts(
        x, weights, chosen, gate, up, down, gate_bias, up_bias, down_bias, kind=kind, limit=limit, alpha=alpha,
        shift=shift, on_input=on_input,
    )  # fmt: skip
    return residual + answer


@normed_route.shape
def _(
    x: Shape, norm: Shape, weight: Shape, bias: Shape | None, correction: Shape | None, expert_scale: Shape | None,
    *, eps: float, top: int, scoring: str, scores_chosen: bool = False, groups: int = 1, top_groups: int = 1,
    group_top: int = 1, renormalize: bool = False, factor: float = 1.0, softcap: float = 0.0,
) -> list[Shape]:  # fmt: skip
    expect("norm", norm, x[1])
    chosen = route.infer(
        x=x, weight=weight, bias=bias, correction=correction, expert_scale=expert_scale, top=top, scoring=scoring,
        scores_chosen=scores_chosen, groups=groups, top_groups=top_groups, group_top=group_top,
        renormalize=renormalize, factor=factor, softcap=softcap,
    )  # fmt: skip
    return [x, *chosen]


@experts_add.shape
def _(
    x: Shape, weights: Shape, chosen: Shape, residual: Shape, gate: Shape | None, up: Shape, down: Shape,
    gate_bias: Shape | None, up_bias: Shape | None, down_bias: Shape | None,
    *, kind: str, limit: float = 0.0, alpha: float = 1.0, shift: float = 0.0, on_input: bool = False,
) -> Shape:  # fmt: skip
    expect("residual", residual, *x)
    return experts.infer(
        x=x, weights=weights, chosen=chosen, gate=gate, up=up, down=down, gate_bias=gate_bias, up_bias=up_bias,
        down_bias=down_bias, kind=kind, limit=limit, alpha=alpha, shift=shift, on_input=on_input,
    )[0]  # fmt: skip


@normed_route.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in islice(route.example_args(make.dtype, seed=5), 0, None, 3):
        yield {**args, "norm": make(args["x"].shape[1]), "eps": 1e-2}


@experts_add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in islice(experts.example_args(make.dtype, seed=6), 0, None, 5):
        yield {**args, "residual": make(*args["x"].shape)}
