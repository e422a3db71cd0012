"""A handle on one weight: its name, shape and format. The bytes stay in the mapped file until they are accessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class HasMatrices(Protocol):
    """A tensor that may have three axes, of which one matrix can be read then."""

    def matrix(self, index: int) -> StoredTensor: ...  # reads nothing


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """The steps from the stored tensor to the graph's weight: transpose, take rows, then add a number or -exp of all.

    They apply to every matrix of a stack. Rows are whole in every number format, so quantized rows are moved without
    touching a number. The others need plain floats.
    """

    transposed: bool = False
    rows: Array | None = None  # int64: for every row of a matrix, the row of the tensor's; None: all in order
    added: float = 0.0
    negated_exp: bool = False  # rates of decay, which are stored as logarithms
    has_vectors: bool = False  # the tensor is a stack of vectors: biases of a stack of matrices; a row is one number

    @property
    def changes_numbers(self) -> bool:
        """Are numbers changed, and not only moved?"""
        return bool(self.added) or self.negated_exp


PLAIN = Transform()


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One weight under its name in the graph. Two names of one weight (tied embeddings) are one object."""

    name: str
    shape: tuple[int, ...]
    format: str
    source: StoredTensor
    transform: Transform = PLAIN

    @property
    def num_bytes(self) -> int:
        """Stored size. Reads nothing."""
        stored = math.prod(self.source.shape)
        return (
            self.source.num_bytes
            if stored == math.prod(self.shape)
            else (self.source.num_bytes * math.prod(self.shape) // stored)
        )

    @property
    def row_order(self) -> Array | None:
        """Rows of the tensor, or of each matrix of a stack, in the graph's order; None: the tensor's own order."""
        return self.transform.rows

    def matrix(self, index: int) -> Weight:
        """One matrix [out, in] of a stack [matrices, out, in]. Its numbers are read without those of the others."""
        if len(self.shape) != 3 or not isinstance(self.source, HasMatrices):
            raise TypeError(f"{self.name} is no stack of matrices")
        return Weight(f"{self.name}.{index}", self.shape[1:], self.format, self.source.matrix(index), self.transform)

    def raw(self) -> Array:
        """Return the bytes in the weight's format, rows in the graph's order: uint8 [rows, bytes of a row].

        A stack has the rows of all its matrices. A view of the mapped file, unless numbers have to move.
        """
        num_rows = math.prod(self.shape[:-1]) if len(self.shape) > 1 else self.shape[0]
        if self.format != self.source.format or self.transform.changes_numbers:  # see `transformed`
            return self.float32().reshape(num_rows, -1).view(np.uint8)
        order, data = self.row_order, self.source.data
        if order is None and not self.transform.transposed:
            return data.reshape(num_rows, -1)
        stored = (*self.source.shape, 1) if self._has_vectors else self.source.shape
        stack = data.reshape(-1, stored[-2], data.size // math.prod(stored[:-1]))
        if self.transform.transposed:
            numbers = stack.view(f"u{_ELEMENT_BYTES[self.format]}").swapaxes(1, 2)
            stack = np.ascontiguousarray(numbers).view(np.uint8)
        return (stack if order is None else stack[:, order]).reshape(num_rows, -1)

    @property
    def _has_vectors(self) -> bool:
        return self.transform.has_vectors or len(self.source.shape) == 1

    def float32(self) -> Array:
        """Dequantize to float32 [*shape]. Not cached."""
        numbers = self.source.dequantize()
        if self.transform.transposed:
            numbers = numbers.swapaxes(-1, -2)
        if self.row_order is not None:
            numbers = numbers[..., self.row_order] if self._has_vectors else numbers[..., self.row_order, :]
        if self.transform.added:
            numbers = numbers + np.float32(self.transform.added)
        if self.transform.negated_exp:
            numbers = -np.exp(numbers)
        return np.ascontiguousarray(numbers, np.float32).reshape(self.shape)


Weights = Mapping[str, Weight]

_ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # formats without blocks, which can be transposed


def transformed(name: str, shape: tuple[int, ...], source: StoredTensor, transform: Transform = PLAIN) -> Weight:
    """A weight made of a stored tensor. It becomes float32 where the transform needs numbers and not only rows."""
    needs_numbers = transform.changes_numbers or (transform.transposed and source.format not in _ELEMENT_BYTES)
    return Weight(name, shape, "f32" if needs_numbers else source.format, source, transform)


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

    def matrix(self, index: int) -> ComputedTensor:
        """One matrix of a stack: a view."""
        return ComputedTensor(f"{self.name}.{index}", self.array[index])


@dataclass(frozen=True, slots=True, eq=False)
class StackedTensor:
    """Tensors of one shape and format that are stored apart, as one with an axis in front."""

    name: str
    parts: tuple[StoredTensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)

    @property
    def format(self) -> str:
        return self.parts[0].format

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    @property
    def data(self) -> Array:
        return np.concatenate([part.data.reshape(-1) for part in self.parts])

    def dequantize(self) -> Array:
        return np.stack([part.dequantize() for part in self.parts])

    def matrix(self, index: int) -> StoredTensor:
        """One of the parts."""
        return self.parts[index]


def computed_weight(name: str, array: Array) -> Weight:
    """Make a float32 weight from an array."""
    tensor = ComputedTensor(name, np.ascontiguousarray(array, np.float32))
    return Weight(name, tensor.shape, tensor.format, tensor)
