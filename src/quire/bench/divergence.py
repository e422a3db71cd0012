"""How far one distribution of the next token is from another, over windows of a text.

The second half of each window is counted. This imports numpy alone: a machine with a GPU may have little else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WINDOW, NUM_WINDOWS = 512, 8
BLOCK = 16
HELD = 16.0  # nats below the likeliest token
ROWS_AT_ONCE = 64


def log_probabilities(logits: Array) -> Array:
    """float32 [positions, vocabulary]"""
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


def held(log_probs: Array) -> Array:
    """None further than HELD below the likeliest."""
    out: Array = np.maximum(log_probs, log_probs.max(1, keepdims=True) - np.float32(HELD))
    return out


def divergences(expected: Array, found: Array) -> Array:
    """float64 [positions, 2]: KL of `found` from `expected`, and whether their likeliest token is the same."""
    kl = [
        (np.exp(p) * (p.astype(np.float64) - q)).sum(1)
        for p, q in (
            (expected[at : at + ROWS_AT_ONCE], found[at : at + ROWS_AT_ONCE])
            for at in range(0, len(expected), ROWS_AT_ONCE)
        )
    ]
    return np.stack([np.concatenate(kl), expected.argmax(1) == found.argmax(1)], axis=1)
