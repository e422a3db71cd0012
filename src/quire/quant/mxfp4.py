"""MXFP4: 4-bit floats that share a power of two, 32 weights at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import nibbles
from .format import QuantFormat, quant_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The E2M1 values doubled, so that they are integers; the scales below are halved in return.
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
HALF_SCALES = np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


@quant_format("mxfp4", gguf_type=39)
class MXFP4(QuantFormat):
    """32 weights in 17 bytes: an exponent byte, 16 bytes of nibbles. weight = 2 ** (exponent - 127) * e2m1(nibble).

    A nibble is 1 sign, 2 exponent, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6. The low nibbles are weights 0..15, the
    high ones 16..31. As in ggml, exponent 255 is a power of two like the others, and -0 is 0.
    """

    block_weights, block_bytes = 32, 17

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return HALF_SCALES[raw[:, :1]] * DOUBLED[nibbles(raw[:, 1:])]
