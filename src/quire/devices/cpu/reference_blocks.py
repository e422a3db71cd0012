"""The KV blocks and states of an interpreter as bytes: a block's are those of each cache of its group, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.interpret import Interpreter
from quire.ops.cache import CrossCache, LatentCache, PagedCache, StateCache

Array = NDArray[Any]


class ReferenceBlocks:
    """Reads and writes the arrays of an interpreter's caches."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    @property
    def has_sources(self) -> bool:
        """Does a layer read an encoder's output? Its blocks have another owner."""
        return any(isinstance(cache, CrossCache) for cache in self._interpreter.caches)

    def planes(self, group: int) -> list[Array]:
        """Return the arrays of a group's caches, each [blocks, ...]. Group 0: those that keep all tokens."""
        found: list[Array] = []
        for cache, window in self._interpreter.grouped_caches():
            if (0 if window is None else window + 1) != group:
                continue
            if isinstance(cache, PagedCache):
                found += [cache.keys, cache.values]
            elif isinstance(cache, LatentCache):
                found.append(cache.rows)
        return found

    def states(self) -> list[Array]:
        """Return the arrays of the recurrent layers' states, each [slots, ...]."""
        return [cache.slots for cache in self._interpreter.caches if isinstance(cache, StateCache)]


def rows_bytes(arrays: list[Array]) -> int:
    """Return the bytes of one row of all arrays."""
    return sum(array[0].nbytes for array in arrays)


def read_rows(arrays: list[Array], rows: Array) -> Array:
    """Return the bytes of some rows of all arrays: uint8 [rows, bytes]."""
    parts = [np.ascontiguousarray(array[rows]).view(np.uint8).reshape(len(rows), -1) for array in arrays]
    return np.concatenate(parts, axis=1) if parts else np.empty((len(rows), 0), np.uint8)


def write_rows(arrays: list[Array], rows: Array, data: Array) -> None:
    """Overwrite some rows of all arrays."""
    at = 0
    for array in arrays:
        size = array[0].nbytes
        part = np.ascontiguousarray(data[:, at : at + size]).view(array.dtype)
        array[rows] = part.reshape(len(rows), *array.shape[1:])
        at += size
