"""Fused ops of recurrent layers. Models never draw these: passes put them in where a device has a kernel.

The reference of each is the composition of the plain ops that it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

from quire.ops.batch import Batch
from quire.ops.cache import State, StateCache
from quire.ops.elementwise import ACTIVATIONS
from quire.ops.registry import Args, Array, ArrayMaker, Shape, op
from quire.ops.short_conv import short_conv


@op(weights=short_conv.weights, tolerance={"f32": 2e-6, "f16": 2e-3, "bf16": 1e-2})
def activated_conv(x: Array, cache: StateCache, batch: Batch, weight: Array, bias: Array | None, *, kind: str) -> Array:
    """activation(short_conv(x))."""
    return ACTIVATIONS[kind](short_conv(x, cache, batch, weight, bias))


@activated_conv.shape
def _(x: Shape, cache: State, weight: Shape, bias: Shape | None, *, kind: str) -> Shape:
    return short_conv.infer(x=x, cache=cache, weight=weight, bias=bias)[0]


@activated_conv.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for args, kind in zip(short_conv.example_args(make.dtype, seed=1), cycle(ACTIVATIONS), strict=False):
        yield {**args, "kind": kind}
