"""State that outlives a step: what a layer declares (`PagedKV`) and the reference's arrays for it (`PagedCache`).

The array layout here is the reference's. A device chooses its own; only the output of attention must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PagedKV:
    """The keys and values that one attention layer stores of every token, and which of them a query may read."""

    num_heads: int  # key and value heads
    key_dim: int
    value_dim: int
    window: int | None = None  # a query reads this many tokens, its own included; None: all before it
    chunk: int | None = None  # a query reads only tokens of its own chunk of this many positions; None: one chunk

    @property
    def values_per_token(self) -> int:
        """Numbers stored per token; times the bytes of the KV format, this is the size of a slot."""
        return self.num_heads * (self.key_dim + self.value_dim)

    def first_visible(self, position: int) -> int:
        """The first position that a query at `position` reads."""
        first = 0 if self.window is None else max(0, position + 1 - self.window)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)


@dataclass(frozen=True, slots=True)
class PagedCache:
    """K and V of one layer, in blocks. Written only by attention and by `copy`."""

    spec: PagedKV
    keys: Array  # float32 [num_blocks, block_tokens, num_heads, key_dim]
    values: Array  # float32 [num_blocks, block_tokens, num_heads, value_dim]

    @classmethod
    def empty(cls, spec: PagedKV, num_blocks: int, block_tokens: int) -> PagedCache:
        """A cache of zeros."""
        shape = (num_blocks, block_tokens, spec.num_heads)
        return cls(spec, np.zeros((*shape, spec.key_dim), np.float32), np.zeros((*shape, spec.value_dim), np.float32))

    def write(self, slots: Array, k: Array, v: Array) -> None:
        """Store k [T, num_heads * key_dim] and v [T, num_heads * value_dim] in their slots [T]."""
        for array, numbers in ((self.keys, k), (self.values, v)):
            token = (-1, *array.shape[2:])
            array.reshape(token)[slots] = numbers.reshape(token)

    def read(self, blocks: Array, num_tokens: int) -> tuple[Array, Array]:
        """Return the first `num_tokens` K and V of a block table, in text order: [num_tokens, heads, dim] each."""
        held = blocks[: -(-num_tokens // self.keys.shape[1])]
        pair = (array[held].reshape(-1, *array.shape[2:])[:num_tokens] for array in (self.keys, self.values))
        keys, values = pair
        return keys, values

    def copy(self, copies: Array) -> None:
        """Copy the head of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies:
            self.keys[target, :num_tokens] = self.keys[source, :num_tokens]
            self.values[target, :num_tokens] = self.values[source, :num_tokens]
