"""RMS norm, of whole vectors and of each head of one. Statistics are float32."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op

_TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}


@op(weights=("weight",), tolerance=_TOLERANCE)
def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
    """Scale each vector of x [T, dim] to unit root mean square, times weight [dim]."""
    mean_square = np.square(x, dtype=np.float32).mean(-1, keepdims=True)  # [T, 1]
    normed: Array = x * (np.float32(1.0) / np.sqrt(mean_square + np.float32(eps))) * weight
    return normed


@op(weights=("weight",), tolerance=_TOLERANCE)
def rms_norm_heads(x: Array, weight: Array, *, eps: float) -> Array:
    """rms_norm of every head of x [T, heads * head_dim] with one weight [head_dim]."""
    heads = x.reshape(-1, weight.shape[0])  # [T * heads, head_dim]
    normed: Array = rms_norm.reference(heads, weight, eps=eps).reshape(x.shape)
    return normed


@rms_norm.shape
def _(x: Shape, weight: Shape, *, eps: float) -> Shape:
    expect("weight", weight, x[1])
    return x


@rms_norm_heads.shape
def _(x: Shape, weight: Shape, *, eps: float) -> Shape:
    expect("weight", weight, "*")
    if int(x[1]) % int(weight[0]):
        raise ShapeError("x", (x[0], f"heads * {weight[0]}"), x)
    return x


@rms_norm.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 7, 64), (64, 576)):
        yield {"x": make(num_tokens, dim), "weight": make(dim), "eps": 1e-5}
    yield {"x": make(3, 64) * np.float32(2.0**-12), "weight": make(64), "eps": 1e-6}  # eps dominates here


@rms_norm_heads.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, heads, head_dim in product((1, 7), (1, 3), (16, 128)):
        yield {"x": make(num_tokens, heads * head_dim), "weight": make(head_dim), "eps": 1e-6}
