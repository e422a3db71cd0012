"""float16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .format import F16, QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("f16", gguf_type=1, safetensors="F16")
class Float16(QuantFormat):
    """2 bytes: an IEEE half (1 sign, 5 exponent, 10 mantissa bits)."""

    block_weights, block_bytes = 1, 2

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return raw.view(F16).astype(np.float32)

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        return weights.astype(F16, order="C").view(np.uint8)
