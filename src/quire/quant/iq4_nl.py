"""IQ4_NL: 4 bits that index a table of uneven steps, and a scale for 32 weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import float16, nibbles
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Denser around zero, where most weights are.
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@quant_format("iq4_nl", gguf_type=20)
class IQ4_NL(QuantFormat):
    """32 weights in 18 bytes: float16 scale, 16 bytes of nibbles. weight = scale * LEVELS[nibble].

    The low nibbles are weights 0..15, the high ones 16..31.
    """

    block_weights, block_bytes = 32, 18

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return float16(raw[:, :2]) * LEVELS[nibbles(raw[:, 2:])]
