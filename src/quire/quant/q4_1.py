"""Q4_1: 4 bits, a scale and a minimum for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16_pair, nibbles, pack_nibbles, reciprocal
from .format import F16, QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q4_1", gguf_type=3)
class Q4_1(QuantFormat):
    """32 weights in 20 bytes: float16 scale, float16 minimum, 16 bytes of nibbles. weight = scale * nibble + minimum.

    The low nibbles are weights 0..15, the high ones 16..31.
    """

    block_weights, block_bytes = 32, 20

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale, minimum = float16_pair(raw[:, :4])
        weights = scale * nibbles(raw[:, 4:])
        weights += minimum
        return weights

    def quantize(self, weights: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The smallest weight becomes 0, the largest 15."""
        minimum = weights.min(axis=1, keepdims=True)
        scale = (weights.max(axis=1, keepdims=True) - minimum) / np.float32(15)
        quants = np.trunc((weights - minimum) * reciprocal(scale) + np.float32(0.5)).clip(0, 15).astype(np.uint8)
        scale_and_minimum = np.concatenate([scale, minimum], axis=1).astype(F16).view(np.uint8)
        return np.concatenate([scale_and_minimum, pack_nibbles(quants)], axis=1)
