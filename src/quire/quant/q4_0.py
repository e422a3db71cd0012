"""Q4_0: 4 bits and a scale for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles, pack_nibbles, reciprocal
from .format import F16, QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q4_0", gguf_type=2)
class Q4_0(QuantFormat):
    """32 weights in 18 bytes: float16 scale, 16 bytes of nibbles. weight = scale * (nibble - 8).

    The low nibbles are weights 0..15, the high ones 16..31.
    """

    block_weights, block_bytes = 32, 18

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = float16(raw[:, :2])
        return scale * (nibbles(raw[:, 2:]).view(np.int8) - np.int8(8))

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The weight of the largest magnitude becomes -8, with its sign in the scale."""
        extreme = np.take_along_axis(weights, np.abs(weights).argmax(axis=1, keepdims=True), axis=1)
        scale = extreme / np.float32(-8)
        quants = np.trunc(weights * reciprocal(scale) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
        return np.concatenate([scale.astype(F16).view(np.uint8), pack_nibbles(quants)], axis=1)
