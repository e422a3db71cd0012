"""Packs weights for a native program: chooses the format of each one, and converts its bytes.

The table of formats is in the device's facts (`__init__.py`). Formats with native kernels are packed without loss: a
kernel multiplies exactly the numbers of quire.quant. Rows that are not whole blocks become f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import LoweringOptions, Precision
from quire.graph.weight import Weight, Weights
from quire.quant.registry import all_formats

from . import FACTS, FLOATS, QUANTIZED

Array = NDArray[Any]

LANES = 8  # rows of a panel
TABLES = ("embed", "positions", "types")  # looked up, not multiplied: they stay as they are
STACKED = -1  # instead of a width: rows are padded
SAMPLED_MATRICES = 4  # of a stack, with which variants of kernels are compared


def precision_of(options: LoweringOptions) -> Precision:
    """Return how a program stores and multiplies matrices."""
    return "q8_0" if options.quantize == "q8_0" else options.precision


def packed_format(weight: Weight, precision: Precision) -> str:
    """Return the format of this weight inside a program."""
    if precision == "float":
        return "f32"
    target = FACTS.weight_formats[weight.format]
    if precision == "q8_0" and target in FLOATS and len(weight.shape) > 1 and weight.name not in TABLES:
        target = "q8_0"
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


def stack_shape(weight: Weight) -> tuple[int, int, int]:
    """Matrices, rows and columns of a weight with three axes."""
    count, rows, cols = weight.shape
    return count, rows, cols


def panel_rows(rows: int) -> int:
    """Rows of a matrix of a stack: whole panels."""
    return -(-rows // LANES) * LANES


class Packed(NamedTuple):
    """A matrix as a program stores it."""

    format: str
    shape: tuple[int, int]
    panels: Array  # uint8, a view of the program's memory


class IndexesWeights(Protocol):
    """What the walk over a graph asks about its weights."""

    @property
    def weights(self) -> Weights: ...
    def is_quantized(self, name: str) -> bool: ...
    def rows_of(self, name: str) -> int: ...
    def matrix(self, name: str, target: str | None = None) -> int: ...
    def stack(self, name: Any) -> int: ...
    def matrix_of_heads(self, name: str, *, transposed: bool) -> int: ...
    def vector(self, name: Any, width: int | None = None) -> int: ...
    def vector_of_stack(self, name: Any) -> int: ...
    def numbers(self, name: str) -> Array: ...


class Packer:
    """Adds weights to a native program, each once: two names of one weight are one matrix.

    Panels of an earlier lowering are used as they are; missing ones are packed.
    """

    def __init__(self, program: Any, weights: Weights, precision: Precision, panels: Mapping[str, Array]) -> None:
        self.weights = weights
        self._program, self._precision = program, precision
        self._found = panels
        self._matrices: dict[tuple[int, str], int] = {}
        self._vectors: dict[tuple[int, int | None], int] = {}  # by weight and width
        self._labels: dict[str, int] = {}
        self._added: list[tuple[str, tuple[int, int], int, int | None]] = []  # format, shape, index, bytes (None: all)
        self.num_packed = 0  # matrices that were not found

    def is_quantized(self, name: str) -> bool:
        """Return whether products with this weight take quantized activations."""
        return packed_format(self.weights[name], self._precision) in QUANTIZED

    def rows_of(self, name: str) -> int:
        """Return the rows of a matrix, or the length of a vector."""
        return self.weights[name].shape[0]

    def matrix(self, name: str, target: str | None = None) -> int:
        """Return the program's index of a weight with two axes, in the format `target` or in its own."""
        weight = self.weights[name]
        key = (id(weight), target or packed_format(weight, self._precision))
        if key not in self._matrices:
            self._matrices[key] = self._add(weight, key[1])
        return self._matrices[key]

    def stack(self, name: Any) -> int:
        """The program's index of a weight with three axes; -1 for none."""
        if name is None:
            return -1
        weight = self.weights[name]
        key = (id(weight), packed_format(weight, self._precision))
        if key not in self._matrices:
            self._matrices[key] = self._add_stack(weight, key[1])
        return self._matrices[key]

    def matrix_of_heads(self, name: str, *, transposed: bool) -> int:
        """Return the index of a matrix with the rows of all heads of a weight [heads, rows, columns].

        The rows of a head, or its columns with `transposed`, are padded to whole panels. Quantized weights become f16:
        blocks of a row are no blocks of a column, and such matrices are small.
        """
        weight = self.weights[name]
        target = packed_format(weight, self._precision)
        is_plain = self._precision == "float" or weight.source.format in FLOATS
        key = (id(weight), f"{target} heads")
        if key not in self._matrices:
            self._matrices[key] = self._add_heads(weight, target if is_plain else "f16", transposed)
        return self._matrices[key]

    def matrices(self) -> list[Packed]:
        """Return all matrices, and the first of stacks, in the order in which they were added."""
        return [
            Packed(target, (rows, cols), self._program.panels(index)[:num_bytes])
            for target, (rows, cols), index, num_bytes in self._added
        ]

    def panels(self) -> dict[str, Array]:
        """Return the packed bytes of all matrices by label, for a later lowering."""
        return {label: self._program.panels(index) for label, index in self._labels.items()}

    def _add(self, weight: Weight, target: str) -> int:
        rows, cols = weight.shape
        label = f"{weight.name} {target} {rows}x{cols}"
        if label in self._found:
            index = self._program.adopt(target, (rows, cols), self._found[label])
        else:
            index = self._program.matrix(target, cols, packed_rows(weight, target))
            self.num_packed += 1
        self._labels[label] = index
        self._added.append((target, (rows, cols), index, None))
        return int(index)

    def _add_heads(self, weight: Weight, target: str, transposed: bool) -> int:
        count, first, last = stack_shape(weight)
        rows, cols = (last, first) if transposed else (first, last)
        label, all_rows = f"{weight.name} heads {target} {count}x{rows}x{cols}", count * panel_rows(rows)
        if label in self._found:
            index = self._program.adopt(target, (all_rows, cols), self._found[label])
        else:
            numbers = weight.float32().swapaxes(1, 2) if transposed else weight.float32()
            whole = np.pad(numbers, ((0, 0), (0, panel_rows(rows) - rows), (0, 0)))
            encoded = np.ascontiguousarray(all_formats()[target].quantize(whole.reshape(-1, 1)))
            index = self._program.matrix(target, cols, encoded.view(np.uint8).reshape(all_rows, -1))
            self.num_packed += 1
        self._labels[label] = index
        self._added.append((target, (all_rows, cols), index, None))
        return int(index)

    def _add_stack(self, weight: Weight, target: str) -> int:
        count, rows, cols = stack_shape(weight)
        label, all_rows = f"{weight.name} {target} {count}x{rows}x{cols}", count * panel_rows(rows)
        if label in self._found:
            index = self._program.adopt(target, (all_rows, cols), self._found[label])
        else:
            sources = (packed_rows(weight.matrix(i), target) for i in range(count))
            index = self._program.stack(target, (count, rows, cols), sources)
            self.num_packed += 1
        self._labels[label] = index
        sampled = min(count, SAMPLED_MATRICES)
        num_bytes = self._program.panels(index).nbytes // count * sampled
        self._added.append((target, (sampled * panel_rows(rows), cols), index, num_bytes))
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

    def vector_of_stack(self, name: Any) -> int:
        """The program's index of a weight [matrices, rows], rows padded as those of a stack; -1 for none."""
        if name is None:
            return -1
        key = (id(self.weights[name]), STACKED)
        if key not in self._vectors:
            numbers = self.weights[name].float32()
            short = panel_rows(numbers.shape[1]) - numbers.shape[1]
            self._vectors[key] = self._program.vector(np.pad(numbers, ((0, 0), (0, short))).reshape(-1))
        return self._vectors[key]
