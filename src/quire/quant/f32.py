"""float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .format import F32, QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("f32", gguf_type=0, safetensors="F32")
class Float32(QuantFormat):
    """4 bytes: an IEEE single."""

    block_weights, block_bytes = 1, 4

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return raw.view(F32)

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        return weights.astype(F32, order="C").view(np.uint8)
