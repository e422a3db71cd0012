"""State that outlives a step: what a layer declares (`CacheSpec`) and the arrays behind it (`PagedCache`).

The layout here is the reference's. A device chooses its own; only what attention answers has to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What one attention layer keeps of every token. A new kind of state (cross, conv, SSM) is a new kind here."""

    kind: Literal["paged", "window"]
    num_heads: int  # key and value heads
    head_dim: int
    window: int | None = None  # a query sees this many tokens, itself included; None: all

    @property
    def values_per_token(self) -> int:
        """How many numbers one token costs; times the bytes of the device's KV format it is a slot's size."""
        return 2 * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class PagedCache:
    """K and V of one layer, in blocks. Written by attention alone, or by `copy`."""

    spec: CacheSpec
    keys: Array  # float32 [num_blocks, block_tokens, num_heads, head_dim]
    values: Array  # float32, the same

    @classmethod
    def empty(cls, spec: CacheSpec, num_blocks: int, block_tokens: int) -> PagedCache:
        """All zeros."""
        shape = (num_blocks, block_tokens, spec.num_heads, spec.head_dim)
        return cls(spec, np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def write(self, slots: Array, k: Array, v: Array) -> None:
        """Put k and v [T, num_heads * head_dim] into their slots [T]."""
        token = (-1, self.spec.num_heads, self.spec.head_dim)
        self.keys.reshape(token)[slots] = k.reshape(token)
        self.values.reshape(token)[slots] = v.reshape(token)

    def read(self, blocks: Array, num_tokens: int) -> tuple[Array, Array]:
        """The first `num_tokens` K and V of a block table, in the order of the text: [num_tokens, heads, dim] each."""
        token = (-1, self.spec.num_heads, self.spec.head_dim)
        held = blocks[: -(-num_tokens // self.keys.shape[1])]
        return self.keys[held].reshape(token)[:num_tokens], self.values[held].reshape(token)[:num_tokens]

    def copy(self, copies: Array) -> None:
        """Copy the head of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies:
            self.keys[target, :num_tokens] = self.keys[source, :num_tokens]
            self.values[target, :num_tokens] = self.values[source, :num_tokens]
