"""Attention to what an encoder has computed, and the neighbours of a token.

A source is what a request gives to the encoder of an encoder-decoder model: tokens, or rows of numbers (features). Its
keys and values are computed once and stored in blocks (`Cross`); every token of the decoder reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from quire.ops.attention import TOLERANCE, attend_keys
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Cross, CrossCache, PagedCache
from quire.ops.registry import Args, Array, ArrayMaker, Shape, ShapeError, op

EXACT = {"f32": 0.0, "f16": 0.0, "bf16": 0.0}


@op(tolerance=EXACT)
def shift_tokens(x: Array, batch: Batch, *, by: int) -> Array:
    """For each token the numbers of the token `by` further in its row, before or behind it; zeros beyond the ends."""
    out = np.zeros_like(x)
    for begin, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        first, past = max(begin, begin - by), min(end, end - by)
        if first < past:
            out[first:past] = x[first + by : past + by]
    return out


@op(tolerance=TOLERANCE)
def attention_source(q: Array, cache: CrossCache, batch: Batch, *, scale: float) -> Array:
    """q [T, heads * key_dim]: every token attends to all tokens of its row's source, [T, heads * value_dim]."""
    spec, sources = cache.spec, batch.sources
    if sources is None:
        raise ShapeError("sources", ("rows",), ())
    queries = q.reshape(len(q), spec.num_heads, -1, spec.key_dim) * np.float32(scale)
    out = np.empty((*queries.shape[:3], spec.value_dim), np.float32)
    for row, length in enumerate(sources.lengths):
        keys, values = cache.pages.read(sources.block_tables[row], 0, int(length))
        for token in range(batch.starts[row], batch.starts[row + 1]):
            out[token] = attend_keys(queries[token], keys, values)
    return out.reshape(len(q), -1)


@shift_tokens.shape
def _(x: Shape, *, by: int) -> Shape:
    return x


@attention_source.shape
def _(q: Shape, cache: Cross, *, scale: float) -> Shape:
    if int(q[1]) % (cache.num_heads * cache.key_dim):
        raise ShapeError("q", (q[0], f"group * {cache.num_heads * cache.key_dim}"), q)
    return (q[0], int(q[1]) // cache.key_dim * cache.value_dim)


def _rows(counts: Sequence[int], lengths: Sequence[int] | None = None) -> Batch:
    """A step of rows with these numbers of tokens, and sources of these lengths in blocks of 16."""
    parts, first, block = [], 0, 0
    for row, count in enumerate(counts):
        own = range(first, first + -(-count // 16))
        first += len(own)
        source = None
        if lengths is not None:
            held = -(-lengths[row] // 16)
            source = (lengths[row], range(block, block + held))
            block += held
        parts.append(RowPart([0] * count, 0, list(own), source=source))
    return Batch.of(parts, 16)


@shift_tokens.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for counts, by in product(((1,), (5, 1, 37)), (-1, 1, 3, -40)):
        yield {"x": make(sum(counts), 48), "batch": _rows(counts), "by": by}


@attention_source.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for (kv_heads, group), (counts, lengths) in product(
        ((2, 1), (1, 3)), (((1,), (1,)), ((1, 1, 1), (100, 3, 17)), ((5, 1, 20), (1, 40, 33)))
    ):
        spec = Cross(kv_heads, 16, 32)
        batch = _rows(counts, lengths)
        cache = CrossCache(spec, PagedCache.empty(spec.paged, sum(-(-each // 16) for each in lengths), 16))
        cache.pages.keys[:], cache.pages.values[:] = make(*cache.pages.keys.shape), make(*cache.pages.values.shape)
        yield {
            "q": make(sum(counts), kv_heads * group * 16),
            "cache": cache,
            "batch": batch,
            "scale": 0.25,
        }
