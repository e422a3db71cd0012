"""Ops on each number, or each pair of numbers, by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import erf

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op

TOLERANCE = {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}
_LOOSE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
_ERF = np.vectorize(erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp of a large negative number: the quotient is then 0
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))


def _gelu(x: Array) -> Array:
    return (x * (0.5 + 0.5 * _ERF(x * np.float64(0.5) ** 0.5))).astype(np.float32) if x.size else x


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, np.float32(0.0)),
    "relu2": lambda x: np.square(np.maximum(x, np.float32(0.0))),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}


@op(tolerance=_LOOSE)
def activation(x: Array, *, kind: str) -> Array:
    """The function `kind` of ACTIVATIONS, of every number of x [T, dim]."""
    return ACTIVATIONS[kind](x)


@op(weights=("positive", "negative"), tolerance=_LOOSE)
def xielu(x: Array, positive: Array, negative: Array, *, beta: float, eps: float) -> Array:
    """Above 0 positive * x² + beta * x; else negative * (expm1(min(x, eps)) - x) + beta * x. The weights are [1]."""
    with np.errstate(over="ignore"):
        below = (np.expm1(np.minimum(x, np.float32(eps))) - x) * negative
    return np.where(x > 0, positive * x * x, below) + np.float32(beta) * x


@op(tolerance=TOLERANCE)
def add(x: Array, y: Array) -> Array:
    """x + y, both [T, dim]."""
    return x + y


@op(tolerance=TOLERANCE)
def multiply(x: Array, y: Array) -> Array:
    """x * y, both [T, dim]."""
    return x * y


@op(tolerance=TOLERANCE)
def scale(x: Array, *, factor: float) -> Array:
    """x [T, dim] times a number."""
    return x * np.float32(factor)


@op(tolerance=TOLERANCE)
def scale_rows(x: Array, y: Array) -> Array:
    """x [T, dim] times one number for each token, y [T, 1]."""
    return x * y


@op(weights=("weight",), tolerance=TOLERANCE)
def scale_by(x: Array, weight: Array) -> Array:
    """x [T, dim] times a weight, [1] or [dim]."""
    return x * weight


@op(tolerance=_LOOSE)
def softcap(x: Array, *, cap: float) -> Array:
    """cap * tanh(x / cap)."""
    return np.float32(cap) * np.tanh(x / np.float32(cap))


@op(tolerance=TOLERANCE)
def clamp(x: Array, *, limit: float) -> Array:
    """x, no number of it below -limit or above limit."""
    return np.clip(x, np.float32(-limit), np.float32(limit))


@op(tolerance={"f32": 0.0, "f16": 0.0, "bf16": 0.0})
def columns(x: Array, *, start: int, width: int) -> Array:
    """Columns start .. start + width - 1 of x [T, dim]: [T, width]."""
    return x[:, start : start + width]


@activation.shape
def _(x: Shape, *, kind: str) -> Shape:
    if kind not in ACTIVATIONS:
        raise ValueError(f"there is no activation {kind!r}: {', '.join(ACTIVATIONS)} are known")
    return x


@xielu.shape
def _(x: Shape, positive: Shape, negative: Shape, *, beta: float, eps: float) -> Shape:
    expect("positive", positive, 1)
    expect("negative", negative, 1)
    return x


@add.shape
@multiply.shape
def _(x: Shape, y: Shape) -> Shape:
    expect("y", y, *x)
    return x


@scale_rows.shape
def _(x: Shape, y: Shape) -> Shape:
    expect("y", y, x[0], 1)
    return x


@scale.shape
def _(x: Shape, *, factor: float) -> Shape:
    return x


@scale_by.shape
def _(x: Shape, weight: Shape) -> Shape:
    if weight not in ((1,), (x[1],)):
        raise ShapeError("weight", (x[1],), weight)
    return x


@softcap.shape
def _(x: Shape, *, cap: float) -> Shape:
    return x


@clamp.shape
def _(x: Shape, *, limit: float) -> Shape:
    return x


@columns.shape
def _(x: Shape, *, start: int, width: int) -> Shape:
    if start < 0 or width < 1 or start + width > int(x[1]):
        raise ShapeError("x", (x[0], f"at least {start + width}"), x)
    return (x[0], width)


_SIZES = tuple(product((1, 7, 64), (64, 100)))


@activation.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for kind, (num_tokens, dim) in product(ACTIVATIONS, _SIZES[:4]):
        yield {"x": make(num_tokens, dim) * np.float32(3.0), "kind": kind}
    for kind in ACTIVATIONS:
        yield {"x": np.array([[-100.0, -20.0, -0.0, 0.0, 20.0, 100.0]], np.float32), "kind": kind}


@xielu.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES[:4]:
        weights = {"positive": np.abs(make(1)), "negative": np.abs(make(1))}
        yield {"x": make(num_tokens, dim) * np.float32(3.0), **weights, "beta": 0.5, "eps": -1e-6}


@add.examples
@multiply.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "y": make(num_tokens, dim)}


@scale_rows.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "y": make(num_tokens, 1)}


@scale.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "factor": 0.75}


@scale_by.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "weight": make(dim)}
        yield {"x": make(num_tokens, dim), "weight": make(1)}


@softcap.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim) * np.float32(20.0), "cap": 15.0}


@clamp.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "limit": 0.5}


@columns.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in _SIZES:
        yield {"x": make(num_tokens, dim), "start": 0, "width": dim}
        yield {"x": make(num_tokens, dim), "start": 32, "width": 32}
