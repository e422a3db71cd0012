"""The result of reading a file: tensors that are views of it. Both readers create them with `tensor_at`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.quant.format import QuantFormat
from quire.quant.registry import all_formats

from .errors import CorruptCheckpoint, TruncatedCheckpoint
from .mapped_file import MappedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_WEIGHTS = 1 << 18  # dequantized at a time, so that temporary arrays stay in the CPU's cache
MAX_DIMS = 32
MAX_WEIGHTS = 1 << 60  # product of a shape, zeros counted as ones; numpy cannot describe larger arrays, even empty ones


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array inside a mapped file. Nothing is read until `data` is accessed."""

    name: str
    shape: tuple[int, ...]  # row-major: the last axis is contiguous, and blocks lie along it
    format: str  # a name in quire.quant
    data: NDArray[np.uint8]  # [num_bytes], read only, a view of the file

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def dequantize(self) -> NDArray[np.float32]:
        """A new float32 array of this shape."""
        fmt = all_formats()[self.format]
        blocks = self.data.reshape(-1, fmt.block_bytes)
        weights = np.empty((len(blocks), fmt.block_weights), np.float32)
        step = CHUNK_WEIGHTS // fmt.block_weights
        with np.errstate(all="ignore"):  # infinities and NaN of the file are passed on without a warning
            for start in range(0, len(blocks), step):
                weights[start : start + step] = fmt.dequantize(blocks[start : start + step])
        return weights.reshape(self.shape)

    def matrix(self, index: int) -> Tensor:
        """One matrix of a stack: a view of the file."""
        size = self.num_bytes // self.shape[0]
        return Tensor(f"{self.name}.{index}", self.shape[1:], self.format, self.data[index * size : (index + 1) * size])


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """One file. The first `header_bytes` hold everything but the weights."""

    file: MappedFile
    header_bytes: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def tensor_at(file: MappedFile, name: str, fmt: QuantFormat, shape: tuple[int, ...], start: int) -> Tensor:
    """Return the tensor whose bytes begin at `start`. Raises before allocating if the file cannot hold it."""
    if len(shape) > MAX_DIMS or math.prod(size or 1 for size in shape) > MAX_WEIGHTS:
        raise CorruptCheckpoint(file.path, f"tensor {name!r} has the impossible shape {_brief(shape)}")
    row = shape[-1] if shape else 1
    if row % fmt.block_weights:
        raise CorruptCheckpoint(
            file.path,
            f"tensor {name!r} is {fmt.name}, whose blocks have {fmt.block_weights} weights, but its rows have {row}",
        )
    end = start + fmt.bytes_for(math.prod(shape))
    if end > file.num_bytes:
        raise TruncatedCheckpoint(
            file.path, f"tensor {name!r} ends at byte {end:,}, but the file has {file.num_bytes:,} bytes"
        )
    return Tensor(name, shape, fmt.name, file.data[start:end])


def _brief(shape: tuple[int, ...]) -> str:
    return str(list(shape)) if len(shape) <= MAX_DIMS else f"of {len(shape)} dimensions"
