"""Q2_K: 2 bits in superblocks of 256, with 4-bit scales and minima."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16_pair, planes
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q2_k", gguf_type=10)
class Q2_K(QuantFormat):
    """256 weights in 84 bytes, in 16 groups of 16. weight = d * scale * value - dmin * min.

    0..15    for each group: scale (low nibble) and min (high nibble)
    16..79   2-bit values in planes: 32 bytes hold 4 runs of 32 weights, the lowest bits are the first run
    80..83   float16 d, float16 dmin
    """

    block_weights, block_bytes = 256, 84

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        d, dmin = float16_pair(raw[:, 80:84])
        scale: NDArray[np.float32] = d * (raw[:, :16] & 0x0F)
        minimum: NDArray[np.float32] = dmin * (raw[:, :16] >> 4)
        value = planes(raw[:, 16:80], bits=2).reshape(-1, 16, 16)
        return (scale[:, :, None] * value - minimum[:, :, None]).reshape(-1, 256)
