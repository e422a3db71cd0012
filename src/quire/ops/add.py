"""The residual sum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(tolerance={"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3})
def add(x: Array, y: Array) -> Array:
    """x + y, both [T, dim]."""
    return x + y


@add.shape
def _(x: Shape, y: Shape) -> Shape:
    expect("y", y, *x)
    return x


@add.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 7, 64), (64, 576)):
        yield {"x": make(num_tokens, dim), "y": make(num_tokens, dim)}
