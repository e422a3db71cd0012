"""Q5_1: 5 bits, a scale and a minimum for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16_pair, nibbles
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q5_1", gguf_type=7)
class Q5_1(QuantFormat):
    """32 weights in 24 bytes: float16 scale, float16 minimum, 32 fifth bits, 16 bytes of nibbles.

    weight = scale * value + minimum. Bit i of the 4 bytes is the top bit of weight i. The low nibbles are weights
    0..15, the high ones 16..31.
    """

    block_weights, block_bytes = 32, 24

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale, minimum = float16_pair(raw[:, :4])
        value = nibbles(raw[:, 8:]) | (np.unpackbits(raw[:, 4:8], axis=1, bitorder="little") << 4)
        return scale * value + minimum
