"""Positions: rotary, and by a factor that grows with the position.

The frequencies of rope are computed once, from the model's configuration, and bound like a weight. Two conventions pair
the numbers of a head: halves, (i, i + dim / 2), and `interleaved`, (2i, 2i + 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op


@op(weights=("frequencies",), tolerance={"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2})
def rope(
    x: Array, frequencies: Array, positions: Array, *, head_dim: int, scaling: float = 1.0, interleaved: bool = False
) -> Array:
    """Rotate pair i of every head of x [T, heads * head_dim] by positions [T] * frequencies [rotary / 2].

    Numbers of a head beyond the first `rotary` are not rotated. `scaling` multiplies the rotated ones (YaRN).
    """
    angles = positions.astype(np.float32)[:, None] * frequencies  # [T, rotary / 2]; float32, as in training
    wide = angles.astype(np.float64)  # sine and cosine in float64 are the same on every machine
    cos, sin = ((f(wide) * scaling).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))  # [T, 1, rotary / 2]
    num_pairs = frequencies.shape[0]
    out = x.reshape(len(x), -1, head_dim).copy()  # [T, heads, head_dim]
    turned = out[..., : 2 * num_pairs]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :num_pairs], turned[..., num_pairs:]
    first[...], second[...] = first * cos - second * sin, second * cos + first * sin
    return out.reshape(x.shape)


@rope.shape
def _(
    x: Shape, frequencies: Shape, positions: Shape, *, head_dim: int, scaling: float = 1.0, interleaved: bool = False
) -> Shape:
    expect("frequencies", frequencies, "*")
    if 2 * int(frequencies[0]) > head_dim:
        raise ShapeError("frequencies", (f"at most {head_dim // 2}",), frequencies)
    if int(x[1]) % head_dim:
        raise ShapeError("x", (x[0], f"heads * {head_dim}"), x)
    return x


@rope.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (head_dim, rotary), interleaved in product((1, 7), ((64, 64), (32, 16), (6, 6)), (False, True)):
        yield {
            "x": make(num_tokens, 3 * head_dim),
            "frequencies": (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32),
            "positions": make.rng.integers(0, 4096, num_tokens, dtype=np.int32),
            "head_dim": head_dim,
            "scaling": 1.0 + num_tokens / 10,
            "interleaved": interleaved,
        }


@op(tolerance={"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3})
def scale_by_position(x: Array, positions: Array, *, beta: float, span: int, shift: int = 0) -> Array:
    """x [T, dim] times 1 + beta * log(1 + floor((position + shift) / span)), in float32."""
    steps = np.floor((positions + shift) / np.float64(span)).astype(np.float32)
    factors = (np.float32(1.0) + np.float32(beta) * np.log1p(steps)).astype(np.float32)
    scaled: Array = x * factors[:, None]
    return scaled


@scale_by_position.shape
def _(x: Shape, positions: Shape, *, beta: float, span: int, shift: int = 0) -> Shape:
    return x


@scale_by_position.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, shift in product((1, 7), (0, 1)):
        positions = make.rng.integers(0, 4096, num_tokens, dtype=np.int32)
        yield {"x": make(num_tokens, 64), "positions": positions, "beta": 0.1, "span": 100, "shift": shift}
