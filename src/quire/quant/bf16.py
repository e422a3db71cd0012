"""bfloat16: the upper half of a float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUIET_NAN = np.uint32(0x00400000)


@quant_format("bf16", gguf_type=30, safetensors="BF16")
class BFloat16(QuantFormat):
    """2 bytes: sign, exponent and the first 7 mantissa bits of a float32; the other 16 bits are zero."""

    block_weights, block_bytes = 1, 2

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Round to nearest, ties to even. A NaN is made quiet instead: rounding could turn it into an infinity."""
        bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
        kept = bits >> np.uint32(16)
        rounded = (bits + np.uint32(0x7FFF) + (kept & np.uint32(1))) >> np.uint32(16)
        halves = np.where(np.isnan(weights), (bits | QUIET_NAN) >> np.uint32(16), rounded)
        return halves.astype("<u2").view(np.uint8)
