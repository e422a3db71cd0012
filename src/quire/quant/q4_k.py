"""Q4_K: 4 bits in superblocks of 256, with 6-bit scales and minima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16_pair, nibbles, scales_and_mins
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q4_k", gguf_type=12)
class Q4_K(QuantFormat):
    """256 weights in 144 bytes, in 8 groups of 32. weight = d * scale * nibble - dmin * min.

    0..3      float16 d, float16 dmin
    4..15     8 scales and 8 minima of 6 bits, see bits.scales_and_mins
    16..143   nibbles: 32 bytes hold two groups, the low nibbles are the first
    """

    block_weights, block_bytes = 256, 144

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        d, dmin = float16_pair(raw[:, :4])
        scales, mins = scales_and_mins(raw[:, 4:16])
        value = nibbles(raw[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
        return ((d * scales)[:, :, None] * value - (dmin * mins)[:, :, None]).reshape(-1, 256)
