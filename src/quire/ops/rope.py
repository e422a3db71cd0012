"""Rotary position embedding. The frequencies are computed once, from the model's configuration, and bound as a weight.

Two conventions pair the numbers of a head. Our graphs rotate halves, (i, i + dim / 2). A checkpoint made for pairs,
(2i, 2i + 1), is converted to halves by reordering weight rows when they are read (graph/weight.py), so a device need
only support halves. `interleaved` is for models whose weights cannot be reordered.
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

    Numbers of a head beyond the first `rotary` are copied. `scaling` multiplies the rotated ones (yarn).
    """
    angles = positions.astype(np.float32)[:, None] * frequencies  # [T, rotary / 2]; float32, as in training
    wide = angles.astype(np.float64)  # sine and cosine in float64 are the same on every machine
    cos, sin = ((f(wide) * scaling).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))  # [T, 1, rotary / 2]
    num_pairs = frequencies.shape[0]
    out = x.reshape(len(x), -1, head_dim).copy()  # [T, heads, head_dim]
    rotated = out[..., : 2 * num_pairs]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :num_pairs], rotated[..., num_pairs:]
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
