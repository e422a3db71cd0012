"""Short convolution: every column is a weighted sum of its last few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.batch import Batch
from quire.ops.cache import State, StateCache
from quire.ops.recurrence import STEPS, example_step, recur
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(weights=("weight", "bias"), tolerance={"f32": 1e-6, "f16": 2e-3, "bf16": 1e-2})
def short_conv(x: Array, cache: StateCache, batch: Batch, weight: Array, bias: Array | None) -> Array:
    """x [T, dim], weight [dim, taps], bias [dim]: column c of a token is the sum of weight[c, j] * x[c] over the last
    `taps` tokens of its row, the oldest first, plus bias[c]. The state [dim, taps - 1] holds the tokens before it.
    """

    def step(state: Array, token: int) -> Array:
        seen = np.concatenate([state, x[token][:, None]], axis=1)
        state[:] = seen[:, 1:]
        out: Array = (seen * weight).sum(-1)
        return out if bias is None else out + bias

    return recur(cache, batch, x.shape[1], step)


@short_conv.shape
def _(x: Shape, cache: State, weight: Shape, bias: Shape | None) -> Shape:
    dim, before = cache.shape
    expect("x", x, "*", dim)
    expect("weight", weight, dim, before + 1)
    if bias is not None:
        expect("bias", bias, dim)
    return x


@short_conv.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, dim, taps, has_bias in product(STEPS, (48, 130), (2, 3, 4), (False, True)):
        cache, batch = example_step(make, rows, State((dim, taps - 1)))
        yield {
            "x": make(len(batch.token_ids), dim),
            "cache": cache,
            "batch": batch,
            "weight": make(dim, taps),
            "bias": make(dim) if has_bias else None,
        }
