"""Matrix products. References see float32 weights; a kernel takes whatever format the checkpoint has.

A token's answer must not depend on its company (law 8), and BLAS picks another algorithm for another shape. So tokens
are multiplied in panels of one fixed height, the last one filled up with zeros: always the same product, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

_PANEL = 8
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def product_of(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [T, in] times the transpose of weight [out, in], plus bias [out]: float32 [T, out]."""
    num_tokens, dim = x.shape
    panels = np.zeros((-(-num_tokens // _PANEL), _PANEL, dim), np.float32)
    panels.reshape(-1, dim)[:num_tokens] = x
    out = np.empty((*panels.shape[:2], weight.shape[0]), np.float32)
    for panel, target in zip(panels, out, strict=True):
        np.matmul(panel, weight.T, out=target)
    y: Array = out.reshape(-1, weight.shape[0])[:num_tokens]
    return y if bias is None else y + bias


def product_shape(x: Shape, weight: Shape, bias: Shape | None, names: tuple[str, str] = ("weight", "bias")) -> Shape:
    """The shape rule of `product_of`; names are those of the caller's parameters, for the error."""
    expect(names[0], weight, "*", x[1])
    if bias is not None:
        expect(names[1], bias, weight[0])
    return (x[0], weight[0])


@op(weights=("weight", "bias"), tolerance=TOLERANCE)
def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x [T, in] times the transpose of weight [out, in], plus bias [out]: [T, out]."""
    return product_of(x, weight, bias)


@linear.shape
def _(x: Shape, weight: Shape, bias: Shape | None) -> Shape:
    return product_shape(x, weight, bias)


@linear.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim_in, dim_out), biased in product((1, 7, 65), ((64, 32), (96, 200)), (False, True)):
        bias = make(dim_out) if biased else None
        yield {"x": make(num_tokens, dim_in), "weight": make(dim_out, dim_in), "bias": bias}
