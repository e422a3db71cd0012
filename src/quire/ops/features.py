"""Rows that a step brings along, one for each token (sound, hidden rows of another model); values side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

_EXACT = {"f32": 0.0, "f16": 0.0, "bf16": 0.0}


@op(tolerance=_EXACT)
def features(features: Array, *, dim: int) -> Array:
    """The rows [T, dim] that came with the tokens of the step."""
    return features


@op(tolerance=_EXACT)
def concat(x: Array, y: Array) -> Array:
    """x [T, a] and y [T, b] side by side: [T, a + b]."""
    return np.concatenate([x, y], axis=1)


@features.shape
def _(features: Shape, *, dim: int) -> Shape:
    return (features[0], dim)


@concat.shape
def _(x: Shape, y: Shape) -> Shape:
    expect("y", y, x[0], "*")
    return (x[0], int(x[1]) + int(y[1]))


@features.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 9), (24, 64)):
        yield {"features": make(num_tokens, dim), "dim": dim}


@concat.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, widths in ((1, (64, 64)), (1, (16, 48)), (9, (32, 96)), (20, (48, 16))):
        yield {"x": make(num_tokens, widths[0]), "y": make(num_tokens, widths[1])}
