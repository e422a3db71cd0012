"""Grammar masks: one bit per token, packed into 32-bit words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WORD_BITS = 32


def blank(num_rows: int, vocab_size: int) -> Array:
    """Allocate masks that allow nothing: uint32 [num_rows, words]."""
    return np.zeros((num_rows, -(-vocab_size // WORD_BITS)), np.uint32)


def allowed_ids(bits: Array, vocab_size: int) -> Array:
    """Return the tokens whose bit is set in one mask [words], ascending."""
    words = np.ascontiguousarray(bits, "<u4")
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little"))
