"""ALiBi: factors of the distance between query and key, one for each head."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def exact_slopes(num_heads: int) -> NDArray[Any]:
    """Return the powers of 2 to the -8/n for n heads, n a power of two; further heads lie between. Float32 [heads]."""
    whole = 1 << (num_heads.bit_length() - 1)
    first = 2.0 ** (-8.0 / whole * np.arange(1, whole + 1))
    between = 2.0 ** (-4.0 / whole * np.arange(1, 2 * (num_heads - whole), 2))
    return np.concatenate([first, between]).astype(np.float32)


def alibi_slopes(num_heads: int) -> NDArray[Any]:
    """Return the same, rounded to bfloat16 as in the training of decoders."""
    bits = exact_slopes(num_heads).view(np.uint32)
    rounded: NDArray[Any] = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)
