"""Q6_K: 6 bits in superblocks of 256, with 8-bit scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles, planes
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q6_k", gguf_type=14)
class Q6_K(QuantFormat):
    """256 weights in 210 bytes, in 16 groups of 16. weight = d * scale * (value - 32).

    0..127     bits 0..3: 64 bytes hold 128 weights, the low nibbles are the first 64
    128..191   bits 4, 5 in planes: 32 bytes hold 4 runs of 32 weights
    192..207   an int8 scale for each group
    208..209   float16 d
    """

    block_weights, block_bytes = 256, 210

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        step = float16(raw[:, 208:]) * raw[:, 192:208].view(np.int8)
        low = nibbles(raw[:, :128].reshape(-1, 64)).reshape(-1, 256)
        value = (low | (planes(raw[:, 128:192], bits=2) << 4)).view(np.int8) - np.int8(32)
        return (step[:, :, None] * value.reshape(-1, 16, 16)).reshape(-1, 256)
