"""Q8_0: 8 bits and a scale for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, reciprocal
from .format import F16, QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q8_0", gguf_type=8)
class Q8_0(QuantFormat):
    """32 weights in 34 bytes: float16 scale, 32 int8. weight = scale * int8."""

    block_weights, block_bytes = 32, 34

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = float16(raw[:, :2])
        return scale * raw[:, 2:].view(np.int8)

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The largest magnitude becomes 127; halves round away from zero, as ggml's roundf does."""
        scale = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
        scaled = weights * reciprocal(scale)
        quants = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
        return np.concatenate([scale.astype(F16).view(np.uint8), quants.view(np.uint8)], axis=1)
