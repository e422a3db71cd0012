"""Q5_0: 5 bits and a scale for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray


@quant_format("q5_0", gguf_type=6)
class Q5_0(QuantFormat):
    """32 weights in 22 bytes: float16 scale, 32 fifth bits, 16 bytes of nibbles. weight = scale * (value - 16).

    Bit i of the 4 bytes is the top bit of weight i. The low nibbles are weights 0..15, the high ones 16..31.
    """

    block_weights, block_bytes = 32, 22

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        scale = float16(raw[:, :2])
        value = nibbles(raw[:, 6:]) | (np.unpackbits(raw[:, 2:6], axis=1, bitorder="little") << 4)
        return scale * (value.view(np.int8) - np.int8(16))
