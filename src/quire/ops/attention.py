"""Attention: causal over a paged cache, with or without writing to it, and bidirectional within a step.

`attention` writes the K and V of all rows first, then every token attends. A token is computed alone, over exactly the
keys that it may read. So its output depends on its row's text only: not on its chunk, its blocks or other rows (law 8).

A score is scale * q·k, then softcap * tanh(score / softcap) if there is a softcap, plus an additive bias by distance:
`slopes` (ALiBi) adds -slope * (query position - key position); `distances` [heads, 2D + 1] adds the entry at
clip(key position - query position, -D, D) + D (T5 buckets, which are constant beyond a distance). `sinks` [heads] are
scores of a key whose value is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedCache, PagedKV
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, expect, op

TOLERANCE = {"f32": 2e-5, "f16": 3e-3, "bf16": 2e-2}
EXTRAS = ("sinks", "slopes", "distances")


@op(weights=EXTRAS, tolerance=TOLERANCE)
def attention(
    q: Array, k: Array, v: Array, cache: PagedCache, batch: Batch,
    sinks: Array | None, slopes: Array | None, distances: Array | None, *, scale: float, softcap: float = 0.0,
) -> Array:  # fmt: skip
    """q [T, heads * key_dim], k [T, kv_heads * key_dim], v [T, kv_heads * value_dim]: [T, heads * value_dim].

    Query heads h * group .. (h + 1) * group - 1 read the key head h.
    """
    cache.write(batch.slots, k, v)
    return _attend_cache(q, cache, batch, (sinks, slopes, distances), scale, softcap)


@op(weights=EXTRAS, tolerance=TOLERANCE)
def attention_shared(
    q: Array, cache: PagedCache, batch: Batch,
    sinks: Array | None, slopes: Array | None, distances: Array | None, *, scale: float, softcap: float = 0.0,
) -> Array:  # fmt: skip
    """attention over a cache that an earlier layer of the same step has written."""
    return _attend_cache(q, cache, batch, (sinks, slopes, distances), scale, softcap)


@op(weights=EXTRAS, tolerance=TOLERANCE)
def attention_bidirectional(
    q: Array, k: Array, v: Array, batch: Batch,
    sinks: Array | None, slopes: Array | None, distances: Array | None,
    *, scale: float, num_heads: int, softcap: float = 0.0, window: int | None = None,
) -> Array:  # fmt: skip
    """Every token attends to all tokens of its row, or to those at most `window` positions away. Nothing is stored.

    `num_heads` are key heads. The whole row is in the step.
    """
    keys, values = (x.reshape(len(x), num_heads, -1) for x in (k, v))
    queries = q.reshape(len(q), num_heads, -1, keys.shape[-1]) * np.float32(scale)
    out = np.empty((*queries.shape[:3], values.shape[-1]), np.float32)
    for row in range(len(batch.lengths)):
        start, end = batch.starts[row], batch.starts[row + 1]
        for token in range(start, end):
            first, last = (start, end) if window is None else (max(start, token - window), min(end, token + window + 1))
            bias = _bias(slopes, distances, np.arange(first, last) - token)
            out[token] = _attend(queries[token], keys[first:last], values[first:last], bias, sinks, softcap)
    return out.reshape(len(q), -1)


def _attend_cache(
    q: Array, cache: PagedCache, batch: Batch, extras: tuple[Array | None, ...], scale: float, softcap: float
) -> Array:
    spec = cache.spec
    sinks, slopes, distances = extras
    queries = q.reshape(len(q), spec.num_heads, -1, spec.key_dim) * np.float32(scale)  # [T, kv_heads, group, key_dim]
    out = np.empty((*queries.shape[:3], spec.value_dim), np.float32)
    for row, length in enumerate(batch.lengths):
        first = spec.first_visible(int(batch.positions[batch.starts[row]]))
        keys, values = cache.read(batch.block_tables[row], first, int(length))  # [length - first, kv_heads, dim]
        for token in range(batch.starts[row], batch.starts[row + 1]):
            position = int(batch.positions[token])
            begin, end = spec.first_visible(position), position + 1
            bias = _bias(slopes, distances, np.arange(begin, end) - position)
            seen = slice(begin - first, end - first)
            out[token] = _attend(queries[token], keys[seen], values[seen], bias, sinks, softcap)
    return out.reshape(len(q), -1)


def _bias(slopes: Array | None, distances: Array | None, offsets: Array) -> Array | None:
    """Additive bias [heads, n] for keys at these offsets from the query."""
    if slopes is None and distances is None:
        return None
    bias: Array = np.zeros((1, 1), np.float32)
    if slopes is not None:
        bias = bias - slopes[:, None] * np.abs(offsets).astype(np.float32)
    if distances is not None:
        reach = distances.shape[1] // 2
        bias = bias + distances[:, np.clip(offsets, -reach, reach) + reach]
    return bias


def attend_keys(query: Array, keys: Array, values: Array) -> Array:
    """One scaled query [kv_heads, group, key_dim] over all of keys and values [n, kv_heads, dim], without biases."""
    return _attend(query, keys, values, None, None, 0.0)


def _attend(query: Array, keys: Array, values: Array, bias: Array | None, sinks: Array | None, softcap: float) -> Array:
    """One token: query [kv_heads, group, key_dim], keys and values [n, kv_heads, dim]: [kv_heads, group, value_dim]."""
    scores = query @ keys.transpose(1, 2, 0)  # [kv_heads, group, n]
    if softcap:
        scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
    if bias is not None:
        scores = scores + bias.reshape(*scores.shape)
    most = scores.max(-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(*scores.shape[:2], 1)
        most = np.maximum(most, sink)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - most)
    weights /= total
    seen: Array = weights @ values.transpose(1, 0, 2)
    return seen


@attention.shape
def _(
    q: Shape, k: Shape, v: Shape, cache: PagedKV,
    sinks: Shape | None, slopes: Shape | None, distances: Shape | None, *, scale: float, softcap: float = 0.0,
) -> Shape:  # fmt: skip
    expect("k", k, q[0], cache.num_heads * cache.key_dim)
    expect("v", v, q[0], cache.num_heads * cache.value_dim)
    return _output_shape(q, cache.num_heads, cache.key_dim, cache.value_dim, (sinks, slopes, distances))


@attention_shared.shape
def _(
    q: Shape, cache: PagedKV,
    sinks: Shape | None, slopes: Shape | None, distances: Shape | None, *, scale: float, softcap: float = 0.0,
) -> Shape:  # fmt: skip
    return _output_shape(q, cache.num_heads, cache.key_dim, cache.value_dim, (sinks, slopes, distances))


@attention_bidirectional.shape
def _(
    q: Shape, k: Shape, v: Shape, sinks: Shape | None, slopes: Shape | None, distances: Shape | None,
    *, scale: float, num_heads: int, softcap: float = 0.0, window: int | None = None,
) -> Shape:  # fmt: skip
    for name, shape in (("k", k), ("v", v)):
        if int(shape[1]) % num_heads:
            raise ShapeError(name, (q[0], f"{num_heads} * head_dim"), shape)
    dims = int(k[1]) // num_heads, int(v[1]) // num_heads
    return _output_shape(q, num_heads, *dims, (sinks, slopes, distances))


def _output_shape(q: Shape, kv_heads: int, key_dim: int, value_dim: int, extras: tuple[Shape | None, ...]) -> Shape:
    if int(q[1]) % (kv_heads * key_dim):
        raise ShapeError("q", (q[0], f"group * {kv_heads * key_dim}"), q)
    heads = int(q[1]) // key_dim
    sinks, slopes, distances = extras
    for name, shape in (("sinks", sinks), ("slopes", slopes)):
        if shape is not None:
            expect(name, shape, heads)
    if distances is not None:
        expect("distances", distances, heads, "*")
    return (q[0], heads * value_dim)


# (tokens in the cache already, tokens of this step) of every row
STEPS: tuple[Sequence[tuple[int, int]], ...] = (
    [(0, 1)],
    [(0, 37)],
    [(45, 1), (3, 1), (16, 1)],
    [(0, 5), (30, 1), (12, 20), (15, 2)],
)
_KINDS: tuple[Args, ...] = (
    {},
    {"softcap": 3.0},
    {"sinks": True},
    {"slopes": True},
    {"distances": True},
    {"softcap": 2.0, "sinks": True, "slopes": True, "distances": True},
)


@attention.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, (kv_heads, group), window in product(STEPS, ((1, 4), (2, 3), (3, 1)), (None, 9)):
        yield example(make, PagedKV(kv_heads, 32, 32, window), group, rows, {})
    for rows, kind in product(STEPS[1:], _KINDS[1:]):
        yield example(make, PagedKV(2, 32, 32, 9), 2, rows, kind)
    for rows, spec in product(STEPS, (PagedKV(2, 32, 64), PagedKV(2, 48, 16), PagedKV(1, 32, 32, None, 8))):
        yield example(make, spec, 2, rows, {})


@attention_shared.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, kind in product(STEPS, _KINDS):
        args = example(make, PagedKV(2, 32, 32, 9), 2, rows, kind)
        yield {name: value for name, value in args.items() if name not in ("k", "v")}


@attention_bidirectional.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for rows, kind, window in product(([(0, 1)], [(0, 5), (0, 17), (0, 1)]), _KINDS, (None, 4)):
        args = example(make, PagedKV(2, 32, 48), 2, rows, kind)
        del args["cache"]
        yield {**args, "num_heads": 2, "window": window}


def example(make: ArrayMaker, spec: PagedKV, group: int, rows: Sequence[tuple[int, int]], kind: Args) -> Args:
    """A cache that holds noise, as after long use, and a batch with its blocks all over it."""
    num_blocks, block_tokens = 24, 16
    free = iter(make.rng.permutation(num_blocks))
    parts = []
    for computed, new in rows:
        blocks = [int(next(free)) for _ in range(-(-(computed + new) // block_tokens))]
        parts.append(RowPart([0] * new, computed, blocks))
    shape = (num_blocks, block_tokens, spec.num_heads)
    cache = PagedCache(spec, make(*shape, spec.key_dim), make(*shape, spec.value_dim))
    batch, heads = Batch.of(parts, block_tokens), spec.num_heads * group
    num_tokens = len(batch.token_ids)
    return {
        "q": make(num_tokens, heads * spec.key_dim),
        "k": make(num_tokens, spec.num_heads * spec.key_dim),
        "v": make(num_tokens, spec.num_heads * spec.value_dim),
        "cache": cache,
        "batch": batch,
        "sinks": make(heads) if kind.get("sinks") else None,
        "slopes": np.abs(make(heads)) if kind.get("slopes") else None,
        "distances": make(heads, 13) if kind.get("distances") else None,
        "scale": spec.key_dim**-0.5,
        "softcap": kind.get("softcap", 0.0),
    }
