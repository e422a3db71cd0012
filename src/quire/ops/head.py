"""The output head: logits over the vocabulary, for the tokens that need them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.ops.linear import TOLERANCE, multiply
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op


@op(weights=("weight",), tolerance=TOLERANCE)
def logits(x: Array, weight: Array, logits_at: Array) -> Array:
    """Rows logits_at [L] of x [T, dim], times the transpose of weight [vocab, dim]: [L, vocab]."""
    return multiply(x[logits_at], weight)


@logits.shape
def _(x: Shape, weight: Shape, logits_at: Shape) -> Shape:
    expect("weight", weight, "*", x[1])
    return (logits_at[0], weight[0])


@logits.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, logits_at in ((1, [0]), (9, [3, 8]), (20, list(range(20))), (4, [])):
        yield {"x": make(num_tokens, 64), "weight": make(130, 64), "logits_at": np.array(logits_at, np.int32)}
