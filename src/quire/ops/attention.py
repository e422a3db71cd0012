"""Causal attention over a paged cache. The K and V of all rows of the step are written first, then every token attends.

Each token is computed by itself, over exactly the keys that it may see. Its output depends on its row's text alone: not
on the prefill chunk, not on which blocks hold the keys, not on other rows (law 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from quire.ops.batch import Batch, RowPart
from quire.ops.cache import CacheSpec, PagedCache
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op


@op(tolerance={"f32": 2e-5, "f16": 3e-3, "bf16": 2e-2})
def attention(q: Array, k: Array, v: Array, cache: PagedCache, batch: Batch, *, scale: float) -> Array:
    """Attend with q [T, heads * dim] over k and v [T, kv_heads * dim] and the cache: [T, heads * dim].

    Query heads h * group .. (h + 1) * group - 1 share key head h. The cache's window, if it has one, is the number of
    tokens that a query sees, itself included.
    """
    spec = cache.spec
    cache.write(batch.slots, k, v)
    queries = q.reshape(len(q), spec.num_heads, -1, spec.head_dim) * np.float32(scale)  # [T, kv_heads, group, dim]
    out = np.empty_like(queries)
    for row, length in enumerate(batch.lengths):
        keys, values = cache.read(batch.block_tables[row], length)  # [length, kv_heads, dim]
        for token in range(batch.starts[row], batch.starts[row + 1]):
            end = batch.positions[token] + 1
            begin = 0 if spec.window is None else max(0, end - spec.window)
            out[token] = _attend(queries[token], keys[begin:end], values[begin:end])
    return out.reshape(q.shape)


def _attend(query: Array, keys: Array, values: Array) -> Array:
    """One token: query [kv_heads, group, dim], keys and values [n, kv_heads, dim]: [kv_heads, group, dim]."""
    scores = query @ keys.transpose(1, 2, 0)  # [kv_heads, group, n]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: Array = weights @ values.transpose(1, 0, 2)
    return out


@attention.shape
def _(q: Shape, k: Shape, v: Shape, cache: CacheSpec, *, scale: float) -> Shape:
    expect("k", k, q[0], cache.num_heads * cache.head_dim)
    expect("v", v, q[0], cache.num_heads * cache.head_dim)
    if int(q[1]) % int(k[1]):
        raise ShapeError("q", (q[0], f"group * {k[1]}"), q)
    return q


# per row: (tokens already in the cache, tokens of this step)
_STEPS: tuple[Sequence[tuple[int, int]], ...] = (
    [(0, 1)],
    [(0, 37)],
    [(45, 1), (3, 1), (16, 1)],
    [(0, 5), (30, 1), (12, 20), (15, 2)],
)


@attention.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, (kv_heads, group), window in product(_STEPS, ((1, 4), (2, 3), (3, 1)), (None, 9)):
        spec = CacheSpec("paged" if window is None else "window", kv_heads, 32, window)
        cache, batch = _scattered(make, spec, rows)
        k, v = (make(len(batch.token_ids), kv_heads * 32) for _ in range(2))
        q = make(len(batch.token_ids), kv_heads * group * 32)
        yield {"q": q, "k": k, "v": v, "cache": cache, "batch": batch, "scale": 32**-0.5}


def _scattered(make: ArrayMaker, spec: CacheSpec, rows: Sequence[tuple[int, int]]) -> tuple[PagedCache, Batch]:
    """A cache full of random values, as after long use, and a batch whose blocks are scattered over it."""
    num_blocks, block_tokens = 24, 16
    shape = (num_blocks, block_tokens, spec.num_heads, spec.head_dim)
    free = iter(make.rng.permutation(num_blocks))
    parts = []
    for computed, new in rows:
        blocks = [int(next(free)) for _ in range(-(-(computed + new) // block_tokens))]
        parts.append(RowPart([0] * new, computed, blocks))
    return PagedCache(spec, make(*shape), make(*shape)), Batch.of(parts, block_tokens)
