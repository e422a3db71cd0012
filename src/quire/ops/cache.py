"""State that outlives a step: what a layer declares (`CacheSpec`) and the arrays behind it (`PagedCache`).

This is the layout of the references. A device chooses its own; only the output of attention has to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What one attention layer stores for every token. A new kind of state (cross, conv, SSM) is a new `kind`."""

    kind: Literal["paged", "window"]
    num_heads: int  # key and value heads
    head_dim: int
    window: int | None = None  # a query sees this many tokens, itself included; None: all

    @property
    def values_per_token(self) -> int:
        """Numbers stored per token; times the bytes of the device's KV format, this is the size of a slot."""
        return 2 * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class PagedCache:
    """K and V of one layer, in blocks. Only attention and `copy` write them."""

    spec: CacheSpec
    keys: Array  # float32 [num_blocks, block_tokens, num_heads, head_dim]
    values: Array  # float32, the same

    @classmethod
    def empty(cls, spec: CacheSpec, num_blocks: int, block_tokens: int) -> PagedCache:
        """Allocate a cache of zeros."""
        shape = (num_blocks, block_tokens, spec.num_heads, spec.head_dim)
        return cls(spec, np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def write(self, slots: Array, k: Array, v: Array) -> None:
        """Write k and v [T, num_heads * head_dim] to their slots [T]."""
        token = (-1, self.spec.num_heads, self.spec.head_dim)
        self.keys.reshape(token)[slots] = k.reshape(token)
        self.values.reshape(token)[slots] = v.reshape(token)

    def read(self, blocks: Array, num_tokens: int) -> tuple[Array, Array]:
        """Return the first `num_tokens` K and V of a block table, in text order: [num_tokens, heads, dim] each."""
        token = (-1, self.spec.num_heads, self.spec.head_dim)
        used = blocks[: -(-num_tokens // self.keys.shape[1])]
        return self.keys[used].reshape(token)[:num_tokens], self.values[used].reshape(token)[:num_tokens]

    def copy(self, copies: Array) -> None:
        """Copy the head of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies:
            self.keys[target, :num_tokens] = self.keys[source, :num_tokens]
            self.values[target, :num_tokens] = self.values[source, :num_tokens]
