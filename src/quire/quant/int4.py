"""4-bit matrices with a scale and a zero for each group of a row, and the layouts in which checkpoints store them.

AWQ, GPTQ and compressed-tensors spread a matrix over several tensors of packed int32; GGUF stores it in blocks. All are
repacked to one layout here, without loss, so a device needs one kernel for them.
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
IMPLICIT_ZERO = 8  # the zero point of formats that store none
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position in a word of each of eight neighbours
BLOCKS = {"q4_0": (32, 18), "q4_1": (32, 20), "q4_k": (256, 144)}  # supported GGUF formats: weights, bytes per block


class Int4(NamedTuple):
    """weight = value * scale - zero. Group g of a row is its packed columns g * group .. (g + 1) * group - 1."""

    packed: Bytes  # [rows, columns / 2], the low nibble first
    scales: Floats  # [rows, columns / group]
    zeros: Floats  # [rows, columns / group]
    columns: NDArray[np.int64] | None = None  # [columns] the matrix column of each packed one; None: the same order

    @property
    def group(self) -> int:
        """Weights that share a scale."""
        return 2 * self.packed.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Floats:
        """Return float32 [rows, columns], in the matrix's order of columns."""
        rows, num_groups = self.scales.shape
        values = _halves(self.packed).astype(np.float32).reshape(rows, num_groups, self.group)
        values *= self.scales[:, :, None]
        values -= self.zeros[:, :, None]
        numbers = values.reshape(rows, -1)
        if self.columns is None:
            return numbers
        reordered = np.empty_like(numbers)
        reordered[:, self.columns] = numbers
        return reordered


def from_awq(qweight: Words, qzeros: Words, scales: Floats) -> Int4:
    """Repack AWQ's "gemm" layout: a word holds eight neighbouring rows of a column, interleaved by AWQ_ORDER.

    qweight [columns, rows / 8], qzeros [groups, rows / 8], scales [groups, rows]; weight = (value - zero) * scale.
    """
    values, zeros = (_values(words).reshape(len(words), -1, PER_WORD)[..., AWQ_ORDER] for words in (qweight, qzeros))
    zeros = zeros.reshape(scales.shape).T
    scales = np.ascontiguousarray(scales.T)
    return Int4(_pack(values.reshape(len(qweight), -1).T), scales, zeros * scales)


def from_gptq(qweight: Words, qzeros: Words, scales: Floats, groups: Words | None = None, zero_offset: int = 1) -> Int4:
    """Repack GPTQ's layout: a word of values holds eight columns of a row, a word of zeros eight rows.

    qweight [columns / 8, rows], qzeros [groups, rows / 8], scales [groups, rows]. The first version of the format
    stores zero - 1 (`zero_offset`), in 4 bits. `groups` [columns] is the group of each column.
    """
    values = _values(np.ascontiguousarray(qweight.T))  # [rows, columns]
    zeros = (_values(qzeros).T + np.uint8(zero_offset)) & np.uint8(15)
    scales = np.ascontiguousarray(scales.T)
    columns = _packed_columns(groups, scales.shape[1])
    return Int4(_pack(values if columns is None else values[:, columns]), scales, zeros * scales, columns)


def from_packed(packed: Words, scales: Floats, zeros: Words | None, groups: Words | None = None) -> Int4:
    """Repack compressed-tensors' "pack-quantized": a word of values holds eight columns, a word of zeros eight rows.

    packed [rows, columns / 8], scales [rows, groups], zeros [rows / 8, groups], rounded up. Values and zeros are
    stored with 8 added; without `zeros` all zeros are 0. `groups` as in GPTQ.
    """
    halves = np.ascontiguousarray(packed).view(np.uint8)
    if zeros is None:
        zero = np.full(scales.shape, IMPLICIT_ZERO, np.uint8)
    else:
        zero = _values(np.ascontiguousarray(zeros.T)).T[: len(scales)]
    columns = _packed_columns(groups, scales.shape[1])
    if columns is not None:
        halves = _pack(_halves(halves)[:, columns])
    return Int4(halves, scales, zero * scales, columns)


def from_blocks(fmt: str, raw: Bytes) -> Int4:
    """Repack rows of a GGUF tensor in one of BLOCKS, uint8 [rows, bytes of a row]."""
    rows, (_, num_bytes) = len(raw), BLOCKS[fmt]
    scales, zeros, values = _read_blocks(fmt, raw.reshape(-1, num_bytes))
    return Int4(_pack(values.reshape(rows, -1)), scales.reshape(rows, -1), zeros.reshape(rows, -1))


def _read_blocks(fmt: str, blocks: Bytes) -> tuple[Floats, Floats, Bytes]:
    """Return scales, zeros, and values in the order of the row."""
    if fmt == "q4_k":
        (d, dmin), (scale, least) = float16_pair(blocks[:, :4]), scales_and_mins(blocks[:, 4:16])
        return d * scale, dmin * least, nibbles(blocks[:, 16:].reshape(-1, 32))
    if fmt == "q4_1":
        scales, minimum = float16_pair(blocks[:, :4])
        return scales, -minimum, nibbles(blocks[:, 4:])
    scales = float16(blocks[:, :2])
    return scales, IMPLICIT_ZERO * scales, nibbles(blocks[:, 2:])


def _packed_columns(groups: Words | None, num_groups: int) -> NDArray[np.int64] | None:
    """Return an order of columns in which groups are contiguous. None: they already are.

    Raises ValueError if groups differ in size.
    """
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
    """[n, k] bytes -> [n, 2 k] values, the low nibble first."""
    values = np.empty((len(packed), packed.shape[1], 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[..., 0])
    np.right_shift(packed, 4, out=values[..., 1])
    return values.reshape(len(packed), -1)


def _pack(values: Bytes) -> Bytes:
    """The inverse of `_halves`."""
    return np.ascontiguousarray(values[:, 0::2] | (values[:, 1::2] << np.uint8(4)))
