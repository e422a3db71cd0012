"""Packs weights for a native program: chooses the format of each one, and converts its bytes.

The table of formats is in the device's facts (`__init__.py`). Formats with native kernels are packed without loss: a
kernel multiplies exactly the numbers of quire.quant. Rows that are not whole blocks become f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Precision
from quire.graph.weight import Weight, Weights
from quire.quant.registry import all_formats

from . import FACTS, QUANTIZED

Array = NDArray[Any]

BLOCK = 32
PANEL_ROWS = 8


def packed_format(weight: Weight, precision: Precision) -> str:
    """Return the format of this weight inside a program."""
    if precision == "float":
        return "f32"
    target = FACTS.weight_formats[weight.format]
    has_whole_blocks = weight.shape[-1] % all_formats()[target].block_weights == 0
    return target if has_whole_blocks else "f32"


def packed_rows(weight: Weight, target: str) -> Array:
    """Return the weight's bytes in that format, rows in the graph's order: uint8 [rows, bytes of a row]."""
    if weight.format == target:
        return np.ascontiguousarray(weight.raw())
    numbers = weight.float32()
    fmt = all_formats()[target]
    rows: Array = np.ascontiguousarray(fmt.quantize(numbers.reshape(-1, fmt.block_weights)))
    return rows.view(np.uint8).reshape(weight.shape[0], -1)


class Packed(NamedTuple):
    """A matrix as a program stores it."""

    format: str
    shape: tuple[int, int]
    panels: Array  # uint8, a view of the program's memory


class Packer:
    """Adds weights to a native program, each once: two names of one weight are one matrix.

    Panels of an earlier lowering are used as they are; missing ones are packed.
    """

    def __init__(self, program: Any, weights: Weights, precision: Precision, panels: Mapping[str, Array]) -> None:
        self.weights = weights
        self._program, self._precision = program, precision
        self._found = panels
        self._matrices: dict[int, int] = {}
        self._vectors: dict[tuple[int, int | None], int] = {}
        self._labels: dict[str, int] = {}
        self._added: list[tuple[str, tuple[int, int], int]] = []  # format, shape, index
        self.num_packed = 0  # matrices that were not found

    def is_quantized(self, name: str) -> bool:
        """Return whether products with this weight take quantized activations."""
        return packed_format(self.weights[name], self._precision) in QUANTIZED

    def rows_of(self, name: str) -> int:
        """Return the rows of a matrix, or the length of a vector."""
        return self.weights[name].shape[0]

    def matrix(self, name: str) -> int:
        """Return the program's index of a weight with two axes."""
        weight = self.weights[name]
        if id(weight) not in self._matrices:
            self._matrices[id(weight)] = self._add(weight)
        return self._matrices[id(weight)]

    def matrix_of_heads(self, name: str, *, transposed: bool) -> int:
        """Return the index of a matrix with the rows of all heads of a weight [heads, rows, columns].

        The rows of a head, or its columns with `transposed`, are padded to whole panels. It is not quantized: quantized
        weights become f16, since blocks of rows are no blocks of columns, and such matrices are small.
        """
        weight = self.weights[name]
        if id(weight) not in self._matrices:
            found = packed_format(weight, self._precision)
            target = "f16" if found in QUANTIZED else found
            numbers = weight.float32()
            numbers = numbers.swapaxes(1, 2) if transposed else numbers
            padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % PANEL_ROWS), (0, 0)))
            rows, cols = padded.shape[0] * padded.shape[1], padded.shape[2]
            fmt = all_formats()[target]

            def encode() -> Array:
                encoded: Array = np.ascontiguousarray(fmt.quantize(padded.reshape(-1, fmt.block_weights)))
                return encoded.view(np.uint8).reshape(rows, -1)

            self._matrices[id(weight)] = self._place(weight.name, target, (rows, cols), encode)
        return self._matrices[id(weight)]

    def matrices(self) -> list[Packed]:
        """Return all matrices, in the order in which they were added."""
        return [Packed(target, shape, self._program.panels(index)) for target, shape, index in self._added]

    def panels(self) -> dict[str, Array]:
        """Return the packed bytes of all matrices by label, for a later lowering."""
        return {label: self._program.panels(index) for label, index in self._labels.items()}

    def _add(self, weight: Weight) -> int:
        target = packed_format(weight, self._precision)
        rows, cols = weight.shape
        return self._place(weight.name, target, (rows, cols), lambda: packed_rows(weight, target))

    def _place(self, name: str, target: str, shape: tuple[int, int], encode: Callable[[], Array]) -> int:
        """Adopt the panels of an earlier lowering, or pack encoded rows."""
        label = f"{name} {target} {shape[0]}x{shape[1]}"
        if label in self._found:
            index = self._program.adopt(target, shape, self._found[label])
        else:
            index = self._program.matrix(target, shape[1], encode())
            self.num_packed += 1
        self._labels[label] = index
        self._added.append((target, shape, index))
        return int(index)

    def numbers(self, name: str) -> Array:
        """The numbers of a weight, flat, float32."""
        return self.weights[name].float32().reshape(-1)

    def vector(self, name: Any, width: int | None = None) -> int:
        """The program's index of a weight's numbers; -1 for none. One number is repeated to `width`."""
        if name is None:
            return -1
        key = (id(self.weights[name]), width)
        if key not in self._vectors:
            numbers = self.numbers(name)
            repeated = np.repeat(numbers, width) if width is not None and len(numbers) == 1 else numbers
            self._vectors[key] = self._program.vector(np.ascontiguousarray(repeated))
        return self._vectors[key]
