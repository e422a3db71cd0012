"""The tokens of a step that yield logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, op


@op(tolerance={"f32": 0.0, "f16": 0.0, "bf16": 0.0})
def select(x: Array, logits_at: Array) -> Array:
    """Rows logits_at [L] of x [T, dim]: [L, dim]."""
    return x[logits_at]


@select.shape
def _(x: Shape, logits_at: Shape) -> Shape:
    return (logits_at[0], *x[1:])


@select.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, chosen in ((1, [0]), (9, [3, 8]), (20, list(range(20))), (4, [])):
        yield {"x": make(num_tokens, 64), "logits_at": np.array(chosen, np.int32)}
