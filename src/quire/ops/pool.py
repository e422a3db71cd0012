"""The vectors of a row's tokens become one vector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, op

SUM, MEAN, WEIGHTED_SUM, WEIGHTED_MEAN = range(4)  # the third number of an entry of `pools`


@op(tolerance={"f32": 1e-5, "f16": 3e-3, "bf16": 2e-2})
def pool(x: Array, pools: Array, positions: Array) -> Array:
    """Pool tokens of x [T, dim] by pools [P, 3], each (first token, token after the last, kind): float32 [P, dim].

    Tokens are added in their order, so that a vector does not depend on other rows. Weighted: the token at position p
    counts p + 1 times.
    """
    out = np.empty((len(pools), x.shape[1]), np.float32)
    for target, (begin, end, kind) in zip(out, pools, strict=True):
        weights = np.ones(end - begin, np.float32)
        if kind in (WEIGHTED_SUM, WEIGHTED_MEAN):
            weights = (positions[begin:end] + 1).astype(np.float32)
        target[:] = 0.0
        for vector, weight in zip(x[begin:end], weights, strict=True):
            target += vector * weight
        if kind in (MEAN, WEIGHTED_MEAN):
            target *= np.float32(1.0) / weights.sum(dtype=np.float32)
    return out


@pool.shape
def _(x: Shape, pools: Shape, positions: Shape) -> Shape:
    return (pools[0], *x[1:])


@pool.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for counts in ([1], [5, 1, 17], [40]):
        ends = np.cumsum(counts)
        positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        for kind in range(4):
            pools = np.array([(end - count, end, kind) for end, count in zip(ends, counts, strict=True)], np.int32)
            yield {"x": make(int(ends[-1]), 64), "pools": pools, "positions": positions}
    one_each = np.array([(0, 1, SUM), (6, 7, MEAN), (7, 9, WEIGHTED_SUM)], np.int32)
    yield {"x": make(9, 96), "pools": one_each, "positions": np.arange(9, dtype=np.int32)}
    yield {"x": make(3, 32), "pools": np.zeros((0, 3), np.int32), "positions": np.arange(3, dtype=np.int32)}
