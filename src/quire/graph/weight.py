"""A handle on one weight: what the graph knows about it without reading it. Bytes stay mapped until somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class StoredTensor(Protocol):
    """A tensor in a checkpoint, as the readers of containers give it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...  # row-major: the last axis is the one whose numbers lie side by side
    @property
    def format(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...  # of `data`, told without touching it
    @property
    def data(self) -> Array: ...  # uint8; row after row, each a whole number of the format's blocks
    def dequantize(self) -> Array: ...  # float32, of `shape`


@dataclass(frozen=True, slots=True)
class PairedRows:
    """The file has the rows of every head as rope in pairs wants them: 0, D/2, 1, D/2 + 1, …; our graphs rotate halves.

    Rows are whole in every format, so the order can be restored without touching a number, in quantized files too.
    """

    num_heads: int

    def row_order(self, num_rows: int) -> Array:
        """For every row of the graph's weight, the row of the file that it is. int64 [num_rows]"""
        pairs = np.arange(num_rows).reshape(self.num_heads, -1, 2)  # [head, i, half]
        return pairs.swapaxes(1, 2).reshape(-1)  # [head, half, i]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One weight under its name in the model's words. Two names of one weight (tied embeddings) are one object."""

    name: str
    shape: tuple[int, ...]
    format: str
    source: StoredTensor
    transform: PairedRows | None = None

    @property
    def num_bytes(self) -> int:
        """As it is stored. Touches nothing."""
        return self.source.num_bytes

    @property
    def row_order(self) -> Array | None:
        """Rows of the file in the order of the graph, [shape[0]]; None if that is the file's own order.

        A device that repacks weights folds this into its copy.
        """
        return None if self.transform is None else self.transform.row_order(self.shape[0])

    def raw(self) -> Array:
        """The bytes in the file's format, in the graph's order of rows: uint8 [shape[0], bytes of a row].

        A view of the mapped file, unless rows have to move.
        """
        rows = self.source.data.reshape(self.shape[0], -1)
        order = self.row_order
        return rows if order is None else rows[order]

    def float32(self) -> Array:
        """The numbers, [*shape]. Not kept: who needs them twice keeps them."""
        numbers = self.source.dequantize().reshape(self.shape)
        order = self.row_order
        return np.ascontiguousarray(numbers if order is None else numbers[order], np.float32)


Weights = Mapping[str, Weight]


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTensor:
    """A tensor that no file has, such as the frequencies of rope."""

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


def computed(name: str, array: Array) -> Weight:
    """A weight made here, in float32."""
    tensor = ComputedTensor(name, np.ascontiguousarray(array, np.float32))
    return Weight(name, tensor.shape, tensor.format, tensor)
