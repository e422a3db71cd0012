"""The gated first half of a feed-forward block, as one op, so that a device can pack both matrices into one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.linear import TOLERANCE, multiply, multiply_shape
from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

_WEIGHTS = ("gate", "up", "gate_bias", "up_bias")


@op(weights=_WEIGHTS, tolerance=TOLERANCE)
def silu_gate(x: Array, gate: Array, up: Array, gate_bias: Array | None, up_bias: Array | None) -> Array:
    """silu(linear(x, gate)) * linear(x, up): x [T, dim], both weights [hidden, dim]; returns [T, hidden]."""
    g = multiply(x, gate, gate_bias)
    with np.errstate(over="ignore"):  # exp of a large negative gate overflows; the quotient is then 0, as it should be
        return g / (np.float32(1.0) + np.exp(-g)) * multiply(x, up, up_bias)


@silu_gate.shape
def _(x: Shape, gate: Shape, up: Shape, gate_bias: Shape | None, up_bias: Shape | None) -> Shape:
    expect("up", up, *gate)
    multiply_shape(x, up, up_bias, ("up", "up_bias"))
    return multiply_shape(x, gate, gate_bias, ("gate", "gate_bias"))


@silu_gate.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, (dim, hidden), biased in product((1, 7, 65), ((64, 160), (96, 40)), (False, True)):
        weights = {"gate": make(hidden, dim), "up": make(hidden, dim)}
        biases = {name: make(hidden) if biased else None for name in ("gate_bias", "up_bias")}
        yield {"x": make(num_tokens, dim), **weights, **biases}
