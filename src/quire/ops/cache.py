"""What outlives a step: what layers declare (`PagedKV`, `Latent`, `State`, `Cross`), and the reference's arrays of it.

The array layout here is the reference's. A device chooses its own; only the output of attention must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
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

    @property
    def vectors(self) -> tuple[int, ...]:
        """Sizes of what is stored as one: a KV format with blocks divides each by itself."""
        return (self.key_dim, self.value_dim)

    @property
    def reach(self) -> int | None:
        """A query reads no token further back than this, its own included; None: all before it."""
        return min((size for size in (self.window, self.chunk) if size is not None), default=None)

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

    def read(self, blocks: Array, begin: int, end: int) -> tuple[Array, Array]:
        """Return K and V of the positions begin .. end - 1 of a block table, in text order: [end - begin, heads, dim].

        Entries of other positions are not read: behind a window they are undefined.
        """
        block_tokens = self.keys.shape[1]
        first = begin // block_tokens
        held, skipped = blocks[first : -(-end // block_tokens)], first * block_tokens
        pair = (array[held].reshape(-1, *array.shape[2:]) for array in (self.keys, self.values))
        keys, values = (array[begin - skipped : end - skipped] for array in pair)
        return keys, values

    def copy(self, copies: Array) -> None:
        """Copy the head of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies:
            self.keys[target, :num_tokens] = self.keys[source, :num_tokens]
            self.values[target, :num_tokens] = self.values[source, :num_tokens]


@dataclass(frozen=True, slots=True)
class Latent:
    """What one layer of latent attention stores of every token: numbers from which keys and values of all heads are
    computed, and the part of the keys that rope has rotated, which all heads share."""

    dim: int
    rope_dim: int

    @property
    def values_per_token(self) -> int:
        """Numbers stored per token."""
        return self.dim + self.rope_dim

    @property
    def vectors(self) -> tuple[int, ...]:
        """Sizes of what is stored as one."""
        return (self.dim, self.rope_dim)

    @property
    def reach(self) -> int | None:
        """A query reads all tokens before it."""
        return None


@dataclass(frozen=True, slots=True)
class LatentCache:
    """The latent and the rotated key of one layer, in blocks. Written only by attention and by `copy`."""

    spec: Latent
    rows: Array  # float32 [num_blocks, block_tokens, dim + rope_dim]: the latent, then the rotated key

    def write(self, slots: Array, latent: Array, k_rope: Array) -> None:
        """Store latent [T, dim] and k_rope [T, rope_dim] in their slots [T]."""
        self.rows.reshape(-1, self.rows.shape[-1])[slots] = np.concatenate([latent, k_rope], axis=-1)

    def read(self, blocks: Array, num_tokens: int) -> tuple[Array, Array]:
        """Return the first `num_tokens` latents and rotated keys of a block table, in text order."""
        held = blocks[: -(-num_tokens // self.rows.shape[1])]
        rows = self.rows[held].reshape(-1, self.rows.shape[-1])[:num_tokens]
        return rows[:, : self.spec.dim], rows[:, self.spec.dim :]

    def copy(self, copies: Array) -> None:
        """Copy the head of one block to another, for every (from, to, num tokens) of [C, 3], in order."""
        for source, target, num_tokens in copies:
            self.rows[target, :num_tokens] = self.rows[source, :num_tokens]


@dataclass(frozen=True, slots=True)
class State:
    """What a recurrent layer knows of a row's text: numbers of a fixed size, changed by every token. Always float32."""

    shape: tuple[int, ...]

    @property
    def values_per_token(self) -> int:
        """Nothing is stored per token."""
        return 0

    @property
    def vectors(self) -> tuple[int, ...]:
        """Nothing is stored in a KV format."""
        return ()

    @property
    def num_bytes(self) -> int:
        """Bytes of one state."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True)
class StateCache:
    """The states of one layer, by slot. A row reads its state from one slot and writes it to that or another one."""

    spec: State
    slots: Array  # float32 [num_states, *shape]

    def read(self, slot: int) -> Array:
        """Return a copy of a state; of zeros for slot -1, before the first token."""
        return np.zeros(self.spec.shape, np.float32) if slot < 0 else self.slots[slot].copy()

    def write(self, slot: int, state: Array) -> None:
        """Store a state."""
        self.slots[slot] = state

    def copy(self, copies: Array) -> None:
        """Blocks are copied, and states never: a state is read from one slot and written to another."""


@dataclass(frozen=True, slots=True)
class Cross:
    """The keys and values that one layer of cross-attention reads: of an encoder's output, written once.

    They lie in blocks of their own, found by the batch's `sources`; rows with the same source share them.
    """

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def values_per_token(self) -> int:
        """Numbers stored per token of the source."""
        return self.num_heads * (self.key_dim + self.value_dim)

    @property
    def vectors(self) -> tuple[int, ...]:
        """Sizes of what is stored as one."""
        return (self.key_dim, self.value_dim)

    @property
    def paged(self) -> PagedKV:
        """The layout of its blocks."""
        return PagedKV(self.num_heads, self.key_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class CrossCache:
    """K and V of sources of one layer, in blocks. Written from outside of the graph, before any row reads them."""

    spec: Cross
    pages: PagedCache

    def copy(self, copies: Array) -> None:
        """A source is never copied: rows share its blocks."""


CacheSpec = PagedKV | Latent | State | Cross
ReferenceCache = PagedCache | LatentCache | StateCache | CrossCache


def empty_cache(spec: CacheSpec, num_blocks: int, block_tokens: int, num_states: int = 0) -> ReferenceCache:
    """The reference's cache for a layer: zeros."""
    if isinstance(spec, Cross):
        return CrossCache(spec, PagedCache.empty(spec.paged, num_blocks, block_tokens))
    if isinstance(spec, PagedKV):
        return PagedCache.empty(spec, num_blocks, block_tokens)
    if isinstance(spec, State):
        return StateCache(spec, np.zeros((num_states, *spec.shape), np.float32))
    return LatentCache(spec, np.zeros((num_blocks, block_tokens, spec.values_per_token), np.float32))


@dataclass(frozen=True, slots=True)
class WindowGroup:
    """The layers whose queries read no further back than `window` tokens: they share block tables of their own."""

    window: int
    caches: tuple[int, ...]  # indices into Graph.caches


@dataclass(frozen=True, slots=True)
class CacheGroups:
    """The caches of a graph, by how long their blocks are needed."""

    tokens: tuple[int, ...]  # blocks of all tokens of a text: the batch's own tables
    windows: tuple[WindowGroup, ...]  # blocks of the last tokens: the batch's `windows`, in this order
    states: tuple[int, ...]  # a slot for each row: the batch's `states`
    sources: tuple[int, ...] = ()  # blocks of an encoder's output: the batch's `sources`

    def window_of(self, cache: int) -> int | None:
        """The index of a cache's group in `windows`; None: it is not in one."""
        return next((at for at, group in enumerate(self.windows) if cache in group.caches), None)


def window_sizes(specs: Sequence[CacheSpec], longest: int) -> tuple[int, ...]:
    """The reaches, ascending, that are shorter than the longest text: their layers need not keep all tokens."""
    reaches = {spec.reach for spec in specs if not isinstance(spec, State | Cross)}
    return tuple(sorted(reach for reach in reaches if reach is not None and reach < longest))


def cache_groups(specs: Sequence[CacheSpec], windows: Sequence[int] = ()) -> CacheGroups:
    """Group the caches. `windows`: the reaches whose layers have block tables of their own; others keep all tokens."""
    states = tuple(at for at, spec in enumerate(specs) if isinstance(spec, State))
    sources = tuple(at for at, spec in enumerate(specs) if isinstance(spec, Cross))
    paged = [(at, spec.reach) for at, spec in enumerate(specs) if not isinstance(spec, State | Cross)]
    groups = tuple(WindowGroup(each, tuple(at for at, reach in paged if reach == each)) for each in windows)
    return CacheGroups(tuple(at for at, reach in paged if reach not in windows), groups, states, sources)
