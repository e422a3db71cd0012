"""Norms of whole vectors, or of each group of their numbers (heads). Statistics are float32."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op

_TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}


@op(weights=("weight",), tolerance=_TOLERANCE)
def rms_norm(x: Array, weight: Array | None, *, eps: float, group: int = 0) -> Array:
    """Scale every group of x [T, dim] to unit root mean square, times weight.

    A group is `group` adjacent numbers; 0: all of them. weight: [group] for every group alike, [dim], or None for 1.
    """
    grouped = _grouped(x, group)
    mean_square = np.square(grouped, dtype=np.float32).mean(-1, keepdims=True)
    return _weighted(grouped * (np.float32(1.0) / np.sqrt(mean_square + np.float32(eps))), weight, x)


@op(weights=("weight", "bias"), tolerance=_TOLERANCE)
def layer_norm(x: Array, weight: Array | None, bias: Array | None, *, eps: float, group: int = 0) -> Array:
    """Shift and scale every group of x [T, dim] to mean 0 and variance 1, times weight, plus bias; see rms_norm."""
    grouped = _grouped(x, group).astype(np.float32)
    centred = grouped - grouped.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    out = _weighted(centred * (np.float32(1.0) / np.sqrt(variance + np.float32(eps))), weight, x)
    return out if bias is None else (out.reshape(len(x), -1, len(bias)) + bias).reshape(x.shape)


def _grouped(x: Array, group: int) -> Array:
    return x.reshape(len(x), -1, group or x.shape[1])


def _weighted(grouped: Array, weight: Array | None, x: Array) -> Array:
    if weight is None:
        return grouped.reshape(x.shape)
    return (grouped.reshape(len(x), -1, len(weight)) * weight).reshape(x.shape)


def _shape(x: Shape, group: int, **weights: Shape | None) -> Shape:
    dim = int(x[1])
    if group and dim % group:
        raise ShapeError("x", (x[0], f"groups * {group}"), x)
    for name, shape in weights.items():
        if shape is not None:
            expect(name, shape, "*")
            if shape[0] not in (dim, group or dim):
                raise ShapeError(name, (group or dim,), shape)
    return x


@rms_norm.shape
def _(x: Shape, weight: Shape | None, *, eps: float, group: int = 0) -> Shape:
    return _shape(x, group, weight=weight)


@layer_norm.shape
def _(x: Shape, weight: Shape | None, bias: Shape | None, *, eps: float, group: int = 0) -> Shape:
    return _shape(x, group, weight=weight, bias=bias)


@rms_norm.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 7, 64), (64, 576)):
        yield {"x": make(num_tokens, dim), "weight": make(dim), "eps": 1e-5}
    for num_tokens, heads, group in product((1, 7), (1, 3), (16, 128)):
        for weight in (make(group), make(heads * group), None):
            yield {"x": make(num_tokens, heads * group), "weight": weight, "eps": 1e-6, "group": group}
    yield {"x": make(5, 100), "weight": None, "eps": 1e-6}
    yield {"x": make(3, 64) * np.float32(2.0**-12), "weight": make(64), "eps": 1e-6}  # here eps decides


@layer_norm.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim, (weighted, biased) in product((1, 7), (64, 100), ((1, 1), (1, 0), (0, 0))):
        weight, bias = make(dim) if weighted else None, make(dim) if biased else None
        yield {"x": make(num_tokens, dim) + np.float32(1.5), "weight": weight, "bias": bias, "eps": 1e-5}
    for heads, group in ((1, 16), (3, 32)):
        for size in (group, heads * group):
            args = {"x": make(5, heads * group), "weight": make(size), "bias": make(size)}
            yield {**args, "eps": 1e-5, "group": group}
