"""Token ids, positions and types become vectors."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from quire.ops.registry import Args, Array, ArrayMaker, Shape, expect, op

_TOLERANCE = {"f32": 0.0, "f16": 1e-3, "bf16": 8e-3}


@op(weights=("table",), tolerance=_TOLERANCE)
def embed(token_ids: Array, table: Array) -> Array:
    """Rows token_ids [T] of table [vocab, dim], as float32 [T, dim]."""
    return table[token_ids].astype(np.float32)


@op(weights=("table",), tolerance=_TOLERANCE)
def embed_positions(positions: Array, table: Array, *, offset: int = 0) -> Array:
    """Rows positions [T] + offset of table [num_positions, dim], as float32 [T, dim]."""
    return table[positions + offset].astype(np.float32)


@op(weights=("table",), tolerance=_TOLERANCE)
def embed_types(token_types: Array, table: Array) -> Array:
    """Rows token_types [T] of table [num_types, dim], as float32 [T, dim]: which of two texts a token is of."""
    return table[token_types].astype(np.float32)


@embed.shape
def _(token_ids: Shape, table: Shape) -> Shape:
    expect("table", table, "*", "*")
    return (token_ids[0], table[1])


@embed_positions.shape
def _(positions: Shape, table: Shape, *, offset: int = 0) -> Shape:
    expect("table", table, "*", "*")
    return (positions[0], table[1])


@embed_types.shape
def _(token_types: Shape, table: Shape) -> Shape:
    expect("table", table, "*", "*")
    return (token_types[0], table[1])


@embed.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in product((1, 9), (64, 96)):
        yield {"token_ids": make.rng.integers(0, 50, num_tokens, dtype=np.int32), "table": make(50, dim)}


@embed_positions.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, offset in product((1, 9), (0, 2)):
        positions = make.rng.integers(0, 50, num_tokens, dtype=np.int32)
        yield {"positions": positions, "table": make(52, 64), "offset": offset}


@embed_types.examples
def _(make: ArrayMaker) -> Iterator[Args]:
    for num_tokens, dim in ((1, 64), (9, 64), (9, 48), (16, 16)):
        yield {"token_types": make.rng.integers(0, 2, num_tokens, dtype=np.int32), "table": make(2, dim)}
