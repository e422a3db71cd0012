"""Quantized matrices that a checkpoint stores in several tensors: values of few bits, and their scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quire.graph.weight import HasMatrices, StoredTensor, Weight
from quire.quant.int4 import BLOCKS, Int4, from_blocks
from quire.quant.registry import all_formats

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT4 = "int4"  # the format of a GroupedInt4


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTensor:
    """8-bit floats with a scale for the tensor, for each row, or for each block."""

    values: StoredTensor  # f8_e4m3 [rows, columns]
    scales: StoredTensor
    block: tuple[int, int] | None = None  # rows and columns of a block; None: no scales per block

    @property
    def name(self) -> str:
        return self.values.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def format(self) -> str:
        return self.values.format

    @property
    def num_bytes(self) -> int:
        return self.values.num_bytes + self.scales.num_bytes

    @property
    def data(self) -> NDArray[np.uint8]:
        """Of the values alone."""
        return self.values.data

    @property
    def scale(self) -> NDArray[np.float32]:
        """float32 [1], [rows], or with blocks [rows / block, columns / block], rounded up."""
        scale = np.asarray(self.scales.dequantize(), np.float32)
        return scale if self.block is not None else scale.reshape(-1)

    def dequantize(self) -> NDArray[np.float32]:
        numbers, scale = self.values.dequantize(), self.scale
        if self.block is None:
            numbers *= scale if len(scale) == 1 else scale[:, None]
            return numbers
        height, width = self.block
        wide = scale.repeat(width, axis=1)[:, : numbers.shape[1]]
        for index, row_scales in enumerate(wide):
            numbers[index * height : (index + 1) * height] *= row_scales
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class GroupedInt4:
    """4-bit values with a scale and a zero for each group of a row. Nothing is read until `load` is called."""

    name: str
    shape: tuple[int, int]
    group: int
    load: Callable[[], Int4]  # builds a new Int4 at every call

    @property
    def format(self) -> str:
        return INT4

    @property
    def num_bytes(self) -> int:
        rows, columns = self.shape
        return rows * columns // 2 + 2 * 4 * rows * (columns // self.group)

    @property
    def data(self) -> NDArray[np.uint8]:
        """Of the packed values alone, rows of columns / 2 bytes."""
        return self.load().packed.reshape(-1)

    def dequantize(self) -> NDArray[np.float32]:
        return self.load().dequantize()


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Tensor:
    """MXFP4 as safetensors store it: the low nibble of a byte is followed by its high one, and scales are apart.

    `data` has the blocks of the format mxfp4, with their nibbles in GGUF's order.
    """

    blocks: StoredTensor  # u8 [..., rows, groups, 16]
    scales: StoredTensor  # u8 [..., rows, groups]

    @property
    def name(self) -> str:
        return self.blocks.name

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.scales.shape[:-1], 32 * self.scales.shape[-1])

    @property
    def format(self) -> str:
        return "mxfp4"

    @property
    def num_bytes(self) -> int:
        return self.blocks.num_bytes + self.scales.num_bytes

    @property
    def data(self) -> NDArray[np.uint8]:
        """Converted at every access."""
        halves = self.blocks.data.reshape(-1, 2, 8)  # weights 0..15 and 16..31
        out = np.empty((len(halves), 17), np.uint8)
        out[:, 0] = self.scales.data
        out[:, 1::2] = (halves[:, 0] & 0x0F) | (halves[:, 1] << 4)
        out[:, 2::2] = (halves[:, 0] >> 4) | (halves[:, 1] & 0xF0)
        return out.reshape(-1)

    def dequantize(self) -> NDArray[np.float32]:
        return all_formats()[self.format].dequantize(self.data.reshape(-1, 17)).reshape(self.shape)

    def matrix(self, index: int) -> Mxfp4Tensor:
        """One matrix of a stack."""
        assert isinstance(self.blocks, HasMatrices) and isinstance(self.scales, HasMatrices)
        return Mxfp4Tensor(self.blocks.matrix(index), self.scales.matrix(index))


class Scales(NamedTuple):
    """The scales of a matrix of 8-bit floats: that of a number is values[row // height, column // width]."""

    values: NDArray[np.float32]
    height: int
    width: int


def scales_of(weight: Weight) -> Scales:
    """Return the scales of a matrix whose source is a ScaledTensor, rows in the graph's order.

    Blocks stay blocks if the rows of the weight are whole blocks of the tensor's; else every row has its own scales.
    """
    source, order = weight.source, weight.row_order
    assert isinstance(source, ScaledTensor)
    (rows, columns), (num_rows, _) = weight.shape, source.shape
    height, width = source.block or (1, columns)
    scale = source.scale if source.block is not None else np.broadcast_to(source.scale.reshape(-1, 1), (num_rows, 1))
    if order is None:
        return Scales(scale, height, width)
    firsts = order[::height]
    has_whole_blocks = rows % height == 0 and not (firsts % height).any()
    if has_whole_blocks and np.array_equal(order, (firsts[:, None] + np.arange(height)).reshape(-1)):
        return Scales(scale[firsts // height], height, width)
    return Scales(scale[order // height], 1, width)


def as_grouped_int4(weight: Weight) -> Int4 | None:
    """Return a 4-bit weight as Int4, rows in the graph's order. None: its format cannot be converted."""
    if isinstance(weight.source, GroupedInt4):
        parts = weight.source.load()
        order = weight.row_order
        if order is None:
            return parts
        return parts._replace(packed=parts.packed[order], scales=parts.scales[order], zeros=parts.zeros[order])
    if weight.format not in BLOCKS or weight.shape[-1] % BLOCKS[weight.format][0]:
        return None
    return from_blocks(weight.format, np.ascontiguousarray(weight.raw()))
