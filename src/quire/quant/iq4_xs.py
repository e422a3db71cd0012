"""IQ4_XS: the levels of IQ4_NL in superblocks of 256, with 6-bit scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles
from .format import QuantFormat, quant_format
from .iq4_nl import LEVELS

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("iq4_xs", gguf_type=23)
class IQ4_XS(QuantFormat):
    """256 weights in 136 bytes, in 8 groups of 32. weight = d * (scale - 32) * LEVELS[nibble].

    0..1     float16 d
    2..3     bits 4, 5 of the scales: bits 2g, 2g + 1 of the 16 belong to group g
    4..7     bits 0..3 of the scales: two groups in a byte, the low nibble is the first
    8..135   nibbles: 16 bytes hold a group, the low nibbles are its first 16 weights
    """

    block_weights, block_bytes = 256, 136

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = float16(raw[:, :2])
        high = (raw[:, 2:4, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        low = (raw[:, 4:8, None] >> np.array([0, 4], np.uint8)) & 0x0F
        scale = low.reshape(-1, 8) | (high.reshape(-1, 8) << 4)
        step: NDArray[np.float32] = d * (scale.view(np.int8) - np.int8(32))
        level = LEVELS[nibbles(raw[:, 8:].reshape(-1, 16))].reshape(-1, 8, 32)
        return (step[:, :, None] * level).reshape(-1, 256)
