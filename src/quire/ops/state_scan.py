"""The selective scan of Mamba and Mamba-2: a state that forgets at a rate that each token sets.

The state of a head is a matrix S [dim, size]. For every token, with dt = softplus(dt + bias), clipped to a range:
    S = exp(dt * rate) * S + dt * x ⊗ b
    output = S · c + skip * x
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.batch import Batch
from quire.ops.cache import State, StateCache
from quire.ops.recurrence import STEPS, example_step, recur
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op


@op(weights=("rate", "bias", "skip"), tolerance={"f32": 2e-5, "f16": 4e-3, "bf16": 2e-2})
def state_scan(
    x: Array, dt: Array, b: Array, c: Array, cache: StateCache, batch: Batch,
    rate: Array, bias: Array | None, skip: Array | None, *, low: float = 0.0, high: float = float("inf"),
) -> Array:  # fmt: skip
    """x [T, heads * dim], dt [T, heads], b and c [T, groups * size]: [T, heads * dim]. The state is [heads, dim, size].

    Heads g * n .. (g + 1) * n - 1 have the b and c of group g. rate, below 0, is [heads] (Mamba-2) or [heads, size]
    (Mamba, where every channel is a head); bias and skip are [heads].
    """
    heads, dim, size = cache.spec.shape
    shifted = dt if bias is None else dt + bias
    steps = np.maximum(shifted, np.float32(0.0)) + np.log1p(np.exp(-np.abs(shifted)))
    steps = np.clip(steps, np.float32(low), np.float32(high)).astype(np.float32)  # [T, heads]
    xs = x.reshape(len(x), heads, dim)
    group = heads // (b.shape[1] // size)
    bs, cs = (np.repeat(each.reshape(len(x), -1, size), group, axis=1) for each in (b, c))
    rates = rate.reshape(heads, 1, -1)

    def step(state: Array, token: int) -> Array:
        one = steps[token][:, None, None]
        state *= np.exp(one * rates)
        state += one * xs[token][:, :, None] * bs[token][:, None]
        out: Array = (state * cs[token][:, None]).sum(-1)
        return (out if skip is None else out + skip[:, None] * xs[token]).reshape(-1)

    return recur(cache, batch, heads * dim, step)


@state_scan.shape
def _(
    x: Shape, dt: Shape, b: Shape, c: Shape, cache: State, rate: Shape, bias: Shape | None, skip: Shape | None,
    *, low: float = 0.0, high: float = float("inf"),
) -> Shape:  # fmt: skip
    heads, dim, size = cache.shape
    expect("x", x, "*", heads * dim)
    expect("dt", dt, x[0], heads)
    expect("b", b, x[0], "*")
    expect("c", c, *b)
    if int(b[1]) % size or heads % (int(b[1]) // size):
        raise ShapeError("b", ("tokens", f"groups * {size}"), b)
    expect("rate", rate, *((heads,) if len(rate) == 1 else (heads, size)))
    for name, found in (("bias", bias), ("skip", skip)):
        if found is not None:
            expect(name, found, heads)
    return x


@state_scan.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    shapes = ((4, 16, 16, 1), (4, 24, 32, 2), (48, 1, 16, 1), (2, 64, 128, 1))
    for rows, (heads, dim, size, groups), has_bias in product(STEPS, shapes, (False, True)):
        cache, batch = example_step(make, rows, State((heads, dim, size)))
        num_tokens = len(batch.token_ids)
        yield {
            "x": make(num_tokens, heads * dim),
            "dt": make(num_tokens, heads),
            "b": make(num_tokens, groups * size),
            "c": make(num_tokens, groups * size),
            "cache": cache,
            "batch": batch,
            "rate": -np.exp(make(*((heads, size) if dim == 1 else (heads,)))),
            "bias": make(heads) if has_bias else None,
            "skip": make(heads) if has_bias else None,
            "low": 0.01 if has_bias else 0.0,
            "high": 2.0 if has_bias else float("inf"),
        }
