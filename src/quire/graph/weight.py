"""A handle on one weight: its name, shape and format. The bytes stay in the mapped file until they are accessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StoredTensor(Protocol):
    """A tensor of a checkpoint, as the container readers return it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...  # row-major: the last axis is contiguous
    @property
    def format(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...  # of `data`; reads nothing
    @property
    def data(self) -> Array: ...  # uint8; row after row, each a whole number of the format's blocks
    def dequantize(self) -> Array: ...  # float32, of `shape`


@dataclass(frozen=True, slots=True)
class PairedRows:
    """The file stores the rows of every head in the order of pairwise rope: 0, D/2, 1, D/2 + 1, …

    Our graphs rotate halves. Every format stores whole rows, so reordering them works for quantized files too.
    """

    num_heads: int

    def row_order(self, num_rows: int) -> Array:
        """Return, for every row of the graph's weight, its row in the file: int64 [num_rows]."""
        pairs = np.arange(num_rows).reshape(self.num_heads, -1, 2)  # [head, i, half]
        return pairs.swapaxes(1, 2).reshape(-1)  # [head, half, i]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One weight under its name in the graph. Two names of one weight (tied embeddings) are one object."""

    name: str
    shape: tuple[int, ...]
    format: str
    source: StoredTensor
    transform: PairedRows | None = None

    @property
    def num_bytes(self) -> int:
        """Stored size. Reads nothing."""
        return self.source.num_bytes

    @property
    def row_order(self) -> Array | None:
        """Rows of the file in the order of the graph, [shape[0]]; None if the order is the same.

        A device that repacks weights applies this while it copies.
        """
        return None if self.transform is None else self.transform.row_order(self.shape[0])

    def raw(self) -> Array:
        """Return the bytes in the file's format, rows in the graph's order: uint8 [shape[0], bytes of a row].

        A view of the mapped file, unless rows have to be reordered.
        """
        rows = self.source.data.reshape(self.shape[0], -1)
        order = self.row_order
        return rows if order is None else rows[order]

    def float32(self) -> Array:
        """Dequantize to float32 [*shape]. Not cached."""
        numbers = self.source.dequantize().reshape(self.shape)
        order = self.row_order
        return np.ascontiguousarray(numbers if order is None else numbers[order], np.float32)


Weights = Mapping[str, Weight]


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTensor:
    """A tensor that is computed instead of stored, such as the rope frequencies."""

    name: str
    array: Array  # float32

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def format(self) -> str:
        return "f32"

    @property
    def num_bytes(self) -> int:
        return self.array.nbytes

    @property
    def data(self) -> Array:
        return self.array.reshape(-1).view(np.uint8)

    def dequantize(self) -> Array:
        return self.array


def computed_weight(name: str, array: Array) -> Weight:
    """Make a float32 weight from an array."""
    tensor = ComputedTensor(name, np.ascontiguousarray(array, np.float32))
    return Weight(name, tensor.shape, tensor.format, tensor)
