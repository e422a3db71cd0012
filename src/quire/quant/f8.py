"""The 8-bit floats of safetensors files, decoded by tables of 256 values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _e4m3_values() -> NDArray[np.float32]:
    code = np.arange(256)
    sign, exponent, mantissa = np.where(code & 0x80, -1.0, 1.0), (code >> 3) & 0xF, code & 0x7
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    magnitude[(code & 0x7F) == 0x7F] = np.nan
    return (sign * magnitude).astype(np.float32)


def _e8m0_values() -> NDArray[np.float32]:
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


E4M3 = _e4m3_values()
E4M3_LARGEST = 0x7E
E4M3_HALFWAY = (E4M3[:E4M3_LARGEST] + E4M3[1 : E4M3_LARGEST + 1]) / 2  # between neighbouring values from 0 on
E8M0 = _e8m0_values()


@quant_format("f8_e4m3", safetensors="F8_E4M3")
class Float8E4M3(QuantFormat):
    """1 byte: 1 sign, 4 exponent (bias 7), 3 mantissa bits. No infinities; all ones is NaN; the largest is 448."""

    block_weights, block_bytes = 1, 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return E4M3[raw]

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Round to nearest, ties to even, saturating at the largest value. Codes are in the order of values."""
        magnitude = np.abs(weights)
        code = np.searchsorted(E4M3_HALFWAY, magnitude)
        is_tie = magnitude == E4M3_HALFWAY[np.minimum(code, E4M3_LARGEST - 1)]
        code = np.where(np.isnan(weights), 0x7F, code + (is_tie & (code % 2 == 1)))
        return (code | np.where(np.signbit(weights), 0x80, 0)).astype(np.uint8)


@quant_format("f8_e5m2", safetensors="F8_E5M2")
class Float8E5M2(QuantFormat):
    """1 byte: the upper half of a float16 (1 sign, 5 exponent, 2 mantissa bits), infinities and NaN included."""

    block_weights, block_bytes = 1, 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (raw.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


@quant_format("f8_e8m0", safetensors="F8_E8M0")
class Float8E8M0(QuantFormat):
    """1 byte: an exponent alone, 2 ** (byte - 127); 255 is NaN. Checkpoints store the scales of MX blocks in it."""

    block_weights, block_bytes = 1, 1

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return E8M0[raw]
