"""Matrices of 4 bits with a scale and a zero for each group of a row, and the layouts in which others store them.

AWQ, GPTQ and compressed-tensors spread a matrix over several tensors of packed int32; GGUF has it in blocks. All are
read into one form here, without touching a number: a device needs one kernel for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .bits import float16, float16_pair, nibbles, scales_and_mins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Words = NDArray[np.int32]  # of eight values each

PER_WORD = 8
MIDDLE = 8  # what zero is stored as where no zeros are
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of eight neighbours
BLOCKS = {
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q4_k": (256, 144),
}  # formats of GGUF that are read: weights, bytes of a block


class Int4(NamedTuple):
    """weight = value * scale - zero. Group g of a row is its columns from g * group on, as they are packed."""

    packed: Bytes  # [rows, columns / 2], the lower half of a byte first
    scales: Floats  # [rows, columns / group]
    zeros: Floats  # the same
    columns: NDArray[np.int64] | None = None  # [columns] which column of the matrix each packed one is; None: the same

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return 2 * self.packed.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Floats:
        """float32 [rows, columns], in the matrix's own order of columns."""
        rows, num_groups = self.scales.shape
        values = _halves(self.packed).astype(np.float32).reshape(rows, num_groups, self.group)
        values *= self.scales[:, :, None]
        values -= self.zeros[:, :, None]
        numbers = values.reshape(rows, -1)
        if self.columns is None:
            return numbers
        whole = np.empty_like(numbers)
        whole[:, self.columns] = numbers
        return whole


def from_awq(qweight: Words, qzeros: Words, scales: Floats) -> Int4:
    """AWQ's "gemm": words run along the rows of the matrix, whose neighbours are interleaved in a word.

    qweight [columns, rows / 8], qzeros [groups, rows / 8], scales [groups, rows]; weight = (value - zero) * scale.
    """
    values, zeros = (_values(words).reshape(len(words), -1, PER_WORD)[..., AWQ_ORDER] for words in (qweight, qzeros))
    zeros = zeros.reshape(scales.shape).T
    scales = np.ascontiguousarray(scales.T)
    return Int4(_pack(values.reshape(len(qweight), -1).T), scales, zeros * scales)


def from_gptq(qweight: Words, qzeros: Words, scales: Floats, groups: Words | None = None, zero_offset: int = 1) -> Int4:
    """GPTQ: words of values run along the columns of the matrix, those of zeros along its rows.

    qweight [columns / 8, rows], qzeros [groups, rows / 8], scales [groups, rows]. The first version of the format
    stores zero - 1 (`zero_offset`), in 4 bits. `groups` [columns] says which group each column is in.
    """
    values = _values(np.ascontiguousarray(qweight.T))  # [rows, columns]
    zeros = (_values(qzeros).T + np.uint8(zero_offset)) & np.uint8(15)
    scales = np.ascontiguousarray(scales.T)
    columns = _packed_columns(groups, scales.shape[1])
    return Int4(_pack(values if columns is None else values[:, columns]), scales, zeros * scales, columns)


def from_packed(packed: Words, scales: Floats, zeros: Words | None, groups: Words | None = None) -> Int4:
    """compressed-tensors' "pack-quantized": words of values run along the columns, those of zeros along the rows.

    packed [rows, columns / 8], scales [rows, groups], zeros [rows / 8, groups], rounded up. Values
    and zeros are stored 8 above what they are; without zeros all are 0. `groups` as in GPTQ.
    """
    halves = np.ascontiguousarray(packed).view(np.uint8)
    if zeros is None:
        zero = np.full(scales.shape, MIDDLE, np.uint8)
    else:
        zero = _values(np.ascontiguousarray(zeros.T)).T[: len(scales)]
    columns = _packed_columns(groups, scales.shape[1])
    if columns is not None:
        halves = _pack(_halves(halves)[:, columns])
    return Int4(halves, scales, zero * scales, columns)


def from_blocks(fmt: str, raw: Bytes) -> Int4:
    """Rows of a GGUF tensor in one of BLOCKS, uint8 [rows, bytes of a row]."""
    rows, (_, num_bytes) = len(raw), BLOCKS[fmt]
    scales, zeros, values = _of_blocks(fmt, raw.reshape(-1, num_bytes))
    return Int4(_pack(values.reshape(rows, -1)), scales.reshape(rows, -1), zeros.reshape(rows, -1))


def _of_blocks(fmt: str, blocks: Bytes) -> tuple[Floats, Floats, Bytes]:
    """Scales, zeros, and values in the order of the row."""
    if fmt == "q4_k":
        (d, dmin), (scale, least) = float16_pair(blocks[:, :4]), scales_and_mins(blocks[:, 4:16])
        return d * scale, dmin * least, nibbles(blocks[:, 16:].reshape(-1, 32))
    if fmt == "q4_1":
        scales, minimum = float16_pair(blocks[:, :4])
        return scales, -minimum, nibbles(blocks[:, 4:])
    scales = float16(blocks[:, :2])
    return scales, MIDDLE * scales, nibbles(blocks[:, 2:])


def _packed_columns(groups: Words | None, num_groups: int) -> NDArray[np.int64] | None:
    """The columns in an order in which groups are whole. None: they are. ValueError if groups differ in size."""
    if groups is None:
        return None
    expected = np.arange(len(groups)) // (len(groups) // num_groups)
    if np.array_equal(groups, expected):
        return None
    columns = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[columns], expected):
        raise ValueError("its groups differ in size")
    return columns


def _values(words: Words) -> Bytes:
    """[n, k] words -> [n, 8 k] values of 4 bits, the lowest bits first."""
    return _halves(np.ascontiguousarray(words, "<i4").view(np.uint8))


def _halves(packed: Bytes) -> Bytes:
    """[n, k] bytes -> [n, 2 k] values, the lower half first."""
    values = np.empty((len(packed), packed.shape[1], 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[..., 0])
    np.right_shift(packed, 4, out=values[..., 1])
    return values.reshape(len(packed), -1)


def _pack(values: Bytes) -> Bytes:
    """The inverse of `_halves`."""
    return np.ascontiguousarray(values[:, 0::2] | (values[:, 1::2] << np.uint8(4)))
