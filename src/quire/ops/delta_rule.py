"""The gated delta rule: linear attention whose state forgets, and replaces what it knows of a key.

The state of a head is a matrix S [key_dim, value_dim]. For every token, in this order:
    S *= exp(decay)                        of the head, or of each key channel (KDA)
    S += k ⊗ (beta * (v - k · S))          what S says of k becomes v, as far as beta says
    output = q · S
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.batch import Batch
from quire.ops.cache import State, StateCache
from quire.ops.recurrence import STEPS, example_step, recur
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(tolerance={"f32": 2e-5, "f16": 4e-3, "bf16": 2e-2})
def delta_rule(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, cache: StateCache, batch: Batch,
    *, num_heads: int, scale: float, eps: float | None,
) -> Array:  # fmt: skip
    """q and k [T, num_heads * key_dim], v [T, heads * value_dim], beta [T, heads]: [T, heads * value_dim].

    The state is [heads, key_dim, value_dim]; heads h * group .. (h + 1) * group - 1 have the key head h. decay [T,
    heads] or [T, heads * key_dim] is at most 0. With `eps`, each head of q and k is divided by the root of its sum of
    squares plus eps; then q is multiplied with `scale`.
    """
    heads, key_dim, value_dim = cache.spec.shape
    group = heads // num_heads
    queries, keys = (np.repeat(_unit(x.reshape(len(x), num_heads, key_dim), eps), group, axis=1) for x in (q, k))
    queries = queries * np.float32(scale)
    values = v.reshape(len(v), heads, value_dim)
    kept = np.exp(decay).reshape(len(v), heads, -1, 1)  # [T, heads, 1 or key_dim, 1]

    def step(state: Array, token: int) -> Array:
        key = keys[token][:, :, None]
        state *= kept[token]
        known = (state * key).sum(1)  # [heads, value_dim]
        state += key * ((values[token] - known) * beta[token][:, None])[:, None]
        out: Array = (state * queries[token][:, :, None]).sum(1).reshape(-1)
        return out

    return recur(cache, batch, heads * value_dim, step)


def _unit(x: Array, eps: float | None) -> Array:
    """Each vector at unit length, or x itself without `eps`."""
    if eps is None:
        return x
    unit: Array = x / np.sqrt((x * x).sum(-1, keepdims=True) + np.float32(eps))
    return unit


@delta_rule.shape
def _(
    q: Shape, k: Shape, v: Shape, decay: Shape, beta: Shape, cache: State,
    *, num_heads: int, scale: float, eps: float | None,
) -> Shape:  # fmt: skip
    heads, key_dim, value_dim = cache.shape
    expect("q", q, "*", num_heads * key_dim)
    expect("k", k, q[0], num_heads * key_dim)
    expect("v", v, q[0], heads * value_dim)
    expect("beta", beta, q[0], heads)
    expect("decay", decay, q[0], heads if decay[-1] == heads else heads * key_dim)
    return v


@delta_rule.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    shapes = ((2, 2, 16, 16), (2, 4, 32, 16), (1, 3, 24, 40), (2, 2, 128, 128))
    for rows, (num_heads, heads, key_dim, value_dim), by_channel in product(STEPS, shapes, (False, True)):
        cache, batch = example_step(make, rows, State((heads, key_dim, value_dim)))
        num_tokens = len(batch.token_ids)
        yield {
            "q": make(num_tokens, num_heads * key_dim),
            "k": make(num_tokens, num_heads * key_dim),
            "v": make(num_tokens, heads * value_dim),
            "decay": -np.abs(make(num_tokens, heads * (key_dim if by_channel else 1))),
            "beta": np.abs(make(num_tokens, heads)) / 4,
            "cache": cache,
            "batch": batch,
            "num_heads": num_heads,
            "scale": key_dim**-0.5,
            "eps": 1e-6,
        }


@op(weights=("rate", "bias"), tolerance={"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2})
def log_decay(x: Array, rate: Array, bias: Array) -> Array:
    """rate * softplus(x + bias): x and bias [.., heads * n], rate [heads], below 0, for n neighbours each."""
    shifted = x + bias
    positive: Array = np.maximum(shifted, np.float32(0.0)) + np.log1p(np.exp(-np.abs(shifted)))
    return positive * np.repeat(rate, x.shape[-1] // len(rate))


@log_decay.shape
def _(x: Shape, rate: Shape, bias: Shape) -> Shape:
    expect("bias", bias, x[-1])
    if int(x[-1]) % int(rate[0]):
        expect("rate", rate, x[-1])
    return x


@log_decay.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, heads, each in product((1, 5), (3, 16), (1, 8)):
        yield {
            "x": 3 * make(num_tokens, heads * each),
            "rate": -np.exp(make(heads)),
            "bias": make(heads * each),
        }
