"""Fused ops. Models never draw these: passes put them in where a device has a kernel (graph/passes).

The reference of each is the composition of the plain ops that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.elementwise import ACTIVATIONS
from quire.ops.linear import TOLERANCE, product_of, product_shape
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(weights=("weights", "biases"), tolerance=TOLERANCE)
def linear_split(x: Array, weights: tuple[Array, ...], biases: tuple[Array | None, ...]) -> tuple[Array, ...]:
    """Several linears of one x [T, in], whose weights a device may pack into one matrix: [T, out_i] each."""
    return tuple(product_of(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


@op(weights=("gate", "up", "gate_bias", "up_bias"), tolerance=TOLERANCE)
def gated_linear(
    x: Array, gate: Array, up: Array, gate_bias: Array | None, up_bias: Array | None, *, kind: str
) -> Array:
    """activation(linear(x, gate)) * linear(x, up): x [T, dim], weights [hidden, dim]: [T, hidden]."""
    return ACTIVATIONS[kind](product_of(x, gate, gate_bias)) * product_of(x, up, up_bias)


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def linear_add(x: Array, residual: Array, weight: Array, bias: Array | None) -> Array:
    """residual [T, out] + linear(x)."""
    return residual + product_of(x, weight, bias)


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def head(x: Array, weight: Array, bias: Array | None, *, factor: float = 1.0, cap: float = 0.0) -> Array:
    """linear(x), times factor, softcapped by cap if that is not 0: the logits [L, vocab] of x [L, dim]."""
    logits = product_of(x, weight, bias)
    logits = logits if factor == 1.0 else logits * np.float32(factor)
    return logits if not cap else np.float32(cap) * np.tanh(logits / np.float32(cap))


@linear_split.shape
def _(x: Shape, weights: tuple[Shape, ...], biases: tuple[Shape | None, ...]) -> list[Shape]:
    if len(weights) < 2:
        raise ValueError(f"linear_split has at least two weights, not {len(weights)}")
    pairs = enumerate(zip(weights, biases, strict=True))
    return [product_shape(x, weight, bias, (f"weights[{i}]", f"biases[{i}]")) for i, (weight, bias) in pairs]


@gated_linear.shape
def _(x: Shape, gate: Shape, up: Shape, gate_bias: Shape | None, up_bias: Shape | None, *, kind: str) -> Shape:
    expect("up", up, *gate)
    product_shape(x, up, up_bias, ("up", "up_bias"))
    return product_shape(x, gate, gate_bias, ("gate", "gate_bias"))


@linear_add.shape
def _(x: Shape, residual: Shape, weight: Shape, bias: Shape | None) -> Shape:
    out = product_shape(x, weight, bias)
    expect("residual", residual, *out)
    return out


@head.shape
def _(x: Shape, weight: Shape, bias: Shape | None, *, factor: float = 1.0, cap: float = 0.0) -> Shape:
    return product_shape(x, weight, bias)


@linear_split.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, outs, biased in product((1, 7, 65), ((96, 32, 32), (40, 8)), (False, True)):
        biases = tuple(make(out) if biased else None for out in outs)
        yield {"x": make(num_tokens, 96), "weights": tuple(make(out, 96) for out in outs), "biases": biases}


@gated_linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    sizes = ((64, 160), (96, 40))
    for num_tokens, (dim, hidden), biased in product((1, 7, 65), sizes, (False, True)):
        weights = {"gate": make(hidden, dim), "up": make(hidden, dim)}
        biases = {name: make(hidden) if biased else None for name in ("gate_bias", "up_bias")}
        yield {"x": make(num_tokens, dim), **weights, **biases, "kind": "silu"}
    for kind, num_tokens in product(ACTIVATIONS, (1, 7)):
        weights = {"gate": make(160, 64), "up": make(160, 64)}
        yield {"x": make(num_tokens, 64), **weights, "gate_bias": None, "up_bias": None, "kind": kind}


@linear_add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim_in, dim_out), biased in product((1, 7, 65), ((64, 32), (96, 200)), (False, True)):
        bias = make(dim_out) if biased else None
        arrays = {"x": make(num_tokens, dim_in), "residual": make(num_tokens, dim_out)}
        yield {**arrays, "weight": make(dim_out, dim_in), "bias": bias}


@head.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_logits, biased, factor, cap in product((1, 5), (False, True), (1.0, 0.25), (0.0, 4.0)):
        arrays = {"x": make(num_logits, 64), "weight": make(130, 64), "bias": make(130) if biased else None}
        yield {**arrays, "factor": factor, "cap": cap}
