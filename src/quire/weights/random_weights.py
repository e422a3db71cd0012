"""Random tensors of the right shapes, for benchmarking a model without its weights.

A device that recognizes a `RandomTensor` generates numbers itself; accessing `data` generates them on the host.
Generating takes longer than copying, so the matrices of a stack share their rows, each in another order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from quire.graph.weight import ComputedTensor, StackedTensor
from quire.quant.int4 import Int4
from quire.quant.registry import all_formats

from .quantized_tensors import GroupedInt4, ScaledTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT8, MXFP4 = "f8_e4m3", "mxfp4"
SPREAD = 64.0  # standard deviation of stored 8-bit floats
POOL = 1 << 16  # different 8-bit floats of one tensor, at most
E2M1_STD = math.sqrt(sum(x * x for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)  # of its values, each equally likely
UNIFORM_STD = math.sqrt((16**2 - 1) / 12)  # of the integers 0..15, each equally likely


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """Normally distributed numbers. The same name gives the same numbers on every host."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    format: str = "bf16"
    turn: int | None = None  # of a matrix of a stack: the shared rows are moved up by so many places

    @property
    def scale(self) -> float:
        """The factor of the stored numbers. 8-bit floats then hold up to seven standard deviations on either side."""
        return self.std / SPREAD if self.format == FLOAT8 else 1.0

    @property
    def num_bytes(self) -> int:
        return all_formats()[self.format].bytes_for(math.prod(self.shape))

    @property
    def data(self) -> NDArray[np.uint8]:
        """Generated at every access."""
        if len(self.shape) == 3:
            return np.concatenate([self.matrix(index).data for index in range(self.shape[0])])
        if self.turn is not None:
            rows, first = _shared_rows(replace(self, turn=None)), self.turn % self.shape[0]
            return rows[first : first + self.shape[0]].reshape(-1)
        fmt = all_formats()[self.format]
        if self.format == MXFP4:
            return self._draw_blocks(fmt.bytes_for(math.prod(self.shape)))
        if self.format == FLOAT8 and math.prod(self.shape) > POOL:  # rounding to 8 bits takes long
            pool = replace(self, shape=(POOL,)).data
            places = _generator(self.name).integers(0, POOL, self.shape, np.uint16)
            return pool[places.reshape(-1)]
        numbers = self._draw() / np.float32(self.scale)
        return np.ascontiguousarray(fmt.quantize(numbers.reshape(-1, fmt.block_weights))).reshape(-1)

    def matrix(self, index: int) -> RandomTensor:
        """One matrix of a stack."""
        return replace(self, shape=self.shape[1:], turn=index)

    def dequantize(self) -> NDArray[np.float32]:
        """Return the numbers in `data` as a new float32 array."""
        fmt = all_formats()[self.format]
        return fmt.dequantize(self.data.reshape(-1, fmt.block_bytes)).reshape(self.shape) * np.float32(self.scale)

    def _draw_blocks(self, num_bytes: int) -> NDArray[np.uint8]:
        """Blocks of MXFP4, uniform over the 16 values, whose scale is the power of two nearest to `std`."""
        blocks = _generator(self.name).integers(0, 256, (num_bytes // 17, 17), np.uint8)
        blocks[:, 0] = 127 + round(math.log2(self.std / E2M1_STD))
        return blocks.reshape(-1)

    def _draw(self) -> NDArray[np.float32]:
        numbers = _generator(self.name).standard_normal(self.shape, np.float32)
        numbers *= np.float32(self.std)
        numbers += np.float32(self.mean)
        return numbers


@lru_cache(maxsize=4)
def _shared_rows(matrix: RandomTensor) -> NDArray[np.uint8]:
    """The rows that the matrices of a stack share, twice, [2 * rows, bytes of a row]: each matrix is a view."""
    rows = matrix.data.reshape(matrix.shape[0], -1)
    return np.concatenate([rows, rows])


def random_scaled(name: str, shape: tuple[int, ...], std: float, block: tuple[int, int]) -> StackedTensor:
    """Return a stack of random matrices of 8-bit floats with a scale for each block."""
    values = RandomTensor(name, shape, SPREAD, format=FLOAT8)
    counts = [-(-size // edge) for size, edge in zip(shape[1:], block, strict=True)]
    scales = ComputedTensor(f"{name}_scale_inv", np.full(counts, std / SPREAD, np.float32))
    return StackedTensor(name, tuple(ScaledTensor(values.matrix(i), scales, block) for i in range(shape[0])))


def random_int4(name: str, shape: tuple[int, ...], std: float, group: int) -> GroupedInt4 | StackedTensor:
    """Return a random 4-bit matrix or a stack of them, uniform over the 16 values. A group of -1 is a whole row."""
    if len(shape) == 3:
        parts = (random_int4(f"{name}.{index}", shape[1:], std, group) for index in range(shape[0]))
        return StackedTensor(name, tuple(parts))
    rows, columns = shape
    group = columns if group == -1 else group
    scale = np.float32(std / UNIFORM_STD)

    def draw() -> Int4:
        packed = _generator(name).integers(0, 256, (rows, columns // 2), np.uint8)
        scales = np.full((rows, columns // group), scale)
        return Int4(packed, scales, np.float32(7.5) * scales)

    return GroupedInt4(name, (rows, columns), group, draw)


def _generator(name: str) -> np.random.Generator:
    seed = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(seed))
