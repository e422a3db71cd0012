"""Q5_K: 5 bits in superblocks of 256, with 6-bit scales and minima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16_pair, nibbles, planes, scales_and_mins
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q5_k", gguf_type=13)
class Q5_K(QuantFormat):
    """256 weights in 176 bytes, in 8 groups of 32. weight = d * scale * value - dmin * min.

    0..3      float16 d, float16 dmin
    4..15     8 scales and 8 minima of 6 bits, see bits.scales_and_mins
    16..47    the fifth bits in planes: bit g of byte i belongs to weight i of group g
    48..175   nibbles: 32 bytes hold two groups, the low nibbles are the first
    """

    block_weights, block_bytes = 256, 176

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        d, dmin = float16_pair(raw[:, :4])
        scales, mins = scales_and_mins(raw[:, 4:16])
        low = nibbles(raw[:, 48:].reshape(-1, 32)).reshape(-1, 256)
        value = (low | (planes(raw[:, 16:48], bits=1) << 4)).reshape(-1, 8, 32)
        return ((d * scales)[:, :, None] * value - (dmin * mins)[:, :, None]).reshape(-1, 256)
