"""Unpacking of numbers smaller than a byte. Every block format of ggml packs its bits in one of these ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .format import F16

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]


def float16(packed: Bytes) -> Floats:
    """[n, 2k] bytes -> [n, k]: the float16 numbers in them, as float32."""
    return packed.view(F16).astype(np.float32)


def float16_pair(packed: Bytes) -> tuple[Floats, Floats]:
    """[n, 4] bytes -> [n, 1], [n, 1]: a scale and a minimum."""
    pair = float16(packed)
    return pair[:, :1], pair[:, 1:]


def nibbles(packed: Bytes) -> Bytes:
    """[n, k] bytes -> [n, 2k] values of 4 bits: the low halves of all k bytes, then the high halves."""
    num_bytes = packed.shape[1]
    values = np.empty((len(packed), 2 * num_bytes), np.uint8)
    np.bitwise_and(packed, 0x0F, out=values[:, :num_bytes])
    np.right_shift(packed, 4, out=values[:, num_bytes:])
    return values


def pack_nibbles(values: Bytes) -> Bytes:
    """The inverse of `nibbles`: [n, 2k] values below 16 -> [n, k] bytes."""
    num_bytes = values.shape[1] // 2
    return values[:, :num_bytes] | (values[:, num_bytes:] << np.uint8(4))


def planes(packed: Bytes, bits: int) -> Bytes:
    """[n, 32 g] bytes -> [n, g * (8 / bits) * 32] values of `bits` bits.

    Each run of 32 bytes holds 8 / bits runs of 32 values: the lowest bits of the 32 bytes are the first run.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    values = (packed.reshape(len(packed), packed.shape[1] // 32, 1, 32) >> shifts) & np.uint8((1 << bits) - 1)
    return values.reshape(len(packed), packed.shape[1] * (8 // bits))


def scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes with 8 scales and 8 minima of 6 bits (Q4_K and Q5_K): [n, 12] -> [n, 8], [n, 8].

    bytes 0..3    scales 0..3 in the low 6 bits; the top 2 bits are bits 4, 5 of scales 4..7
    bytes 4..7    minima 0..3, and the top of minima 4..7, in the same way
    bytes 8..11   bits 0..3 of scales 4..7 (low nibble) and of minima 4..7 (high nibble)
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | (first >> 6 << 4)], axis=1)
    mins = np.concatenate([second & 0x3F, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, mins


def reciprocal(scale: Floats) -> Floats:
    """1 / scale, and 0 for a block of zeros, whose scale is 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
