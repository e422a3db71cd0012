"""Fused ops of recurrent layers. Models never draw these: passes put them in where a device has a kernel.

The reference of each is the composition of the plain ops that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product

from quire.ops.batch import Batch
from quire.ops.cache import State, StateCache
from quire.ops.delta_rule import delta_rule, log_decay
from quire.ops.elementwise import ACTIVATIONS
from quire.ops.norm import rms_norm
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op
from quire.ops.short_conv import short_conv


@op(weights=short_conv.weights, tolerance={"f32": 2e-6, "f16": 2e-3, "bf16": 1e-2})
def activated_short_conv(
    x: Array, cache: StateCache, batch: Batch, weight: Array, bias: Array | None, *, kind: str
) -> Array:
    """activation(short_conv(x))."""
    return ACTIVATIONS[kind](short_conv(x, cache, batch, weight, bias))


@op(weights=log_decay.weights, tolerance=delta_rule.tolerance)
def gated_delta_rule(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, cache: StateCache, batch: Batch, rate: Array, bias: Array,
    *, num_heads: int, scale: float, eps: float | None,
) -> Array:  # fmt: skip
    """delta_rule with log_decay(decay) and sigmoid(beta)."""
    kept, share = log_decay(decay, rate, bias), ACTIVATIONS["sigmoid"](beta)
    out: Array = delta_rule(q, k, v, kept, share, cache, batch, num_heads=num_heads, scale=scale, eps=eps)
    return out


@op(weights=("weight",), tolerance=rms_norm.tolerance)
def gated_norm(
    x: Array, gate: Array, weight: Array, *, kind: str, eps: float, group: int = 0, gates_first: bool = False
) -> Array:
    """rms_norm(x) * activation(gate), or, if it gates first, rms_norm(x * activation(gate))."""
    share = ACTIVATIONS[kind](gate)
    if gates_first:
        normed: Array = rms_norm(x * share, weight, eps=eps, group=group)
        return normed
    gated: Array = rms_norm(x, weight, eps=eps, group=group) * share
    return gated


@activated_short_conv.shape
def _(x: Shape, cache: State, weight: Shape, bias: Shape | None, *, kind: str) -> Shape:
    return short_conv.infer(x=x, cache=cache, weight=weight, bias=bias)[0]


@gated_delta_rule.shape
def _(
    q: Shape, k: Shape, v: Shape, decay: Shape, beta: Shape, cache: State, rate: Shape, bias: Shape,
    *, num_heads: int, scale: float, eps: float | None,
) -> Shape:  # fmt: skip
    log_decay.infer(x=decay, rate=rate, bias=bias)
    inputs = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    return delta_rule.infer(**inputs, cache=cache, num_heads=num_heads, scale=scale, eps=eps)[0]


@gated_norm.shape
def _(x: Shape, gate: Shape, weight: Shape, *, kind: str, eps: float, group: int = 0,
      gates_first: bool = False) -> Shape:  # fmt: skip
    expect("gate", gate, *x)
    return rms_norm.infer(x=x, weight=weight, eps=eps, group=group)[0]


@activated_short_conv.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args, kind in zip(short_conv.example_args(make.dtype), cycle(ACTIVATIONS), strict=False):
        yield {**args, "kind": kind}


@gated_delta_rule.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args in delta_rule.example_args(make.dtype):
        heads, width = args["beta"].shape[1], args["decay"].shape[1]
        num_tokens = len(args["beta"])
        given = {"decay": make(num_tokens, width), "beta": make(num_tokens, heads)}
        yield {**args, **given, "rate": -abs(make(heads)), "bias": make(width)}


@gated_norm.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim, group), gates_first in product((1, 5), ((48, 0), (96, 24), (256, 128)), (False, True)):
        yield {
            "x": make(num_tokens, dim),
            "gate": make(num_tokens, dim),
            "weight": make(dim if gates_first else group or dim),
            "kind": "sigmoid" if group else "silu",
            "eps": 1e-5,
            "group": group,
            "gates_first": gates_first,
        }
