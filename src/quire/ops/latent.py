"""Latent attention (MLA): the cache stores one latent a token, from which every head computes its key and value.

A key of head h is keys[h] · latent, followed by the rotated key that all heads share; its value is values[h] · latent.
So a score is (q[h] · keys[h]) · latent + q_rope[h] · k_rope, and the sum of values is values[h] · (sum of latents). The
reference computes in this absorbed form, which expands no key and no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from quire.ops import attention
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Latent, LatentCache
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(weights=("keys", "values"), tolerance=attention.TOLERANCE)
def attention_latent(
    q: Array, q_rope: Array, latent: Array, k_rope: Array, cache: LatentCache, batch: Batch,
    keys: Array, values: Array, *, scale: float,
) -> Array:  # fmt: skip
    """Write latent [T, dim] and k_rope [T, rope_dim] to the cache; every token attends to its row up to itself.

    q is [T, heads * nope_dim], q_rope [T, heads * rope_dim] and rotated; keys [heads, nope_dim, dim], values [heads,
    value_dim, dim]: [T, heads * value_dim].
    """
    cache.write(batch.slots, latent, k_rope)
    num_heads = len(keys)
    queries, rotated = (x.reshape(len(x), num_heads, -1) * np.float32(scale) for x in (q, q_rope))
    out = np.empty((len(q), num_heads, values.shape[1]), np.float32)
    for row, length in enumerate(batch.lengths):
        latents, shared = cache.read(batch.block_tables[row], length)
        for token in range(batch.starts[row], batch.starts[row + 1]):
            end = int(batch.positions[token]) + 1
            absorbed = np.einsum("hn,hnd->hd", queries[token], keys)
            scores = absorbed @ latents[:end].T + rotated[token] @ shared[:end].T  # [heads, end]
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out[token] = np.einsum("hd,hvd->hv", weights @ latents[:end], values)
    return out.reshape(len(q), -1)


@attention_latent.shape
def _(
    q: Shape, q_rope: Shape, latent: Shape, k_rope: Shape, cache: Latent, keys: Shape, values: Shape, *, scale: float
) -> Shape:
    expect("latent", latent, q[0], cache.dim)
    expect("k_rope", k_rope, q[0], cache.rope_dim)
    expect("keys", keys, "*", "*", cache.dim)
    num_heads, nope_dim = int(keys[0]), int(keys[1])
    expect("values", values, num_heads, "*", cache.dim)
    expect("q", q, "*", num_heads * nope_dim)
    expect("q_rope", q_rope, q[0], num_heads * cache.rope_dim)
    return (q[0], num_heads * int(values[1]))


@attention_latent.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, num_heads, (nope_dim, value_dim) in product(attention.STEPS, (1, 4, 6), ((32, 32), (48, 16))):
        yield _example(make, rows, Latent(64, 32), (num_heads, nope_dim, value_dim))


def _example(make: ArrayMaker, rows: Sequence[tuple[int, int]], spec: Latent, heads: tuple[int, int, int]) -> Args:
    """A cache that holds noise, as after long use, and a batch with its blocks all over it."""
    num_blocks, block_tokens = 24, 16
    num_heads, nope_dim, value_dim = heads
    free = iter(make.rng.permutation(num_blocks))
    parts = []
    for computed, new in rows:
        blocks = [int(next(free)) for _ in range(-(-(computed + new) // block_tokens))]
        parts.append(RowPart([0] * new, computed, blocks))
    batch = Batch.of(parts, block_tokens)
    num_tokens = len(batch.token_ids)
    return {
        "q": make(num_tokens, num_heads * nope_dim),
        "q_rope": make(num_tokens, num_heads * spec.rope_dim),
        "latent": make(num_tokens, spec.dim),
        "k_rope": make(num_tokens, spec.rope_dim),
        "cache": LatentCache(spec, make(num_blocks, block_tokens, spec.values_per_token)),
        "batch": batch,
        "keys": make(num_heads, nope_dim, spec.dim),
        "values": make(num_heads, value_dim, spec.dim),
        "scale": (nope_dim + spec.rope_dim) ** -0.5,
    }
