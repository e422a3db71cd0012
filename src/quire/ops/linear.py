"""Matrix products. References see float32 weights; a kernel takes whatever format the checkpoint has.

A token's result must not depend on the other tokens of the batch (law 8), but BLAS picks its algorithm by shape. So
tokens are multiplied in panels of one fixed height, the last one padded with zeros: results are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

_PANEL = 8
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def multiply(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [T, in] times the transpose of weight [out, in], plus bias [out]: float32 [T, out]."""
    num_tokens, dim = x.shape
    panels = np.zeros((-(-num_tokens // _PANEL), _PANEL, dim), np.float32)
    panels.reshape(-1, dim)[:num_tokens] = x
    out = np.empty((*panels.shape[:2], weight.shape[0]), np.float32)
    for panel, target in zip(panels, out, strict=True):
        np.matmul(panel, weight.T, out=target)
    y: Array = out.reshape(-1, weight.shape[0])[:num_tokens]
    return y if bias is None else y + bias


def multiply_shape(x: Shape, weight: Shape, bias: Shape | None, names: tuple[str, str] = ("weight", "bias")) -> Shape:
    """The shape rule of `multiply`; `names` are the caller's parameter names, used in the error."""
    expect(names[0], weight, "*", x[1])
    if bias is not None:
        expect(names[1], bias, weight[0])
    return (x[0], weight[0])


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x [T, in] times the transpose of weight [out, in], plus bias [out]: [T, out]."""
    return multiply(x, weight, bias)


@op(weights=("weights", "biases"), tolerance=TOLERANCE)
def linear_split(x: Array, weights: tuple[Array, ...], biases: tuple[Array | None, ...]) -> tuple[Array, ...]:
    """Several linears of one x [T, in], so that a device can pack their weights into one matrix: [T, out_i] each."""
    return tuple(multiply(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


@linear.shape
def _(x: Shape, weight: Shape, bias: Shape | None) -> Shape:
    return multiply_shape(x, weight, bias)


@linear_split.shape
def _(x: Shape, weights: tuple[Shape, ...], biases: tuple[Shape | None, ...]) -> list[Shape]:
    pairs = enumerate(zip(weights, biases, strict=True))
    return [multiply_shape(x, weight, bias, (f"weights[{i}]", f"biases[{i}]")) for i, (weight, bias) in pairs]


@linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim_in, dim_out), biased in product((1, 7, 65), ((64, 32), (96, 200)), (False, True)):
        bias = make(dim_out) if biased else None
        yield {"x": make(num_tokens, dim_in), "weight": make(dim_out, dim_in), "bias": bias}


@linear_split.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, outs, biased in product((1, 7, 65), ((96, 32, 32), (40, 8)), (False, True)):
        biases = tuple(make(out) if biased else None for out in outs)
        yield {"x": make(num_tokens, 96), "weights": tuple(make(out, 96) for out in outs), "biases": biases}
