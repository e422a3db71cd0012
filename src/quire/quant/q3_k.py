"""Q3_K: 3 bits in superblocks of 256, with 6-bit scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles, planes
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q3_k", gguf_type=11)
class Q3_K(QuantFormat):
    """256 weights in 110 bytes, in 16 groups of 16. weight = d * (scale - 32) * (value - 4).

    0..31      the third bits in planes: bit r of byte i belongs to weight 32 r + i
    32..95     the lower 2 bits in planes: 32 bytes hold 4 runs of 32 weights
    96..103    bits 0..3 of the scales: low nibbles are groups 0..7, high ones 8..15
    104..107   bits 4, 5 of the scales: bits 2k, 2k + 1 of byte i belong to group 4 k + i
    108..109   float16 d
    """

    block_weights, block_bytes = 256, 110

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = float16(raw[:, 108:110])
        high = (raw[:, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
        scale = nibbles(raw[:, 96:104]) | (high.reshape(-1, 16) << 4)
        value = planes(raw[:, 32:96], bits=2) | (planes(raw[:, :32], bits=1) << 2)
        step = d * (scale.view(np.int8) - np.int8(32))
        return (step[:, :, None] * (value.view(np.int8) - np.int8(4)).reshape(-1, 16, 16)).reshape(-1, 256)
