"""Divergence of one next-token distribution from another, over windows of a text.

The second half of each window is counted, as llama-perplexity does. Only numpy is imported: a machine with a GPU may
have little else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WINDOW, NUM_WINDOWS = 512, 8
FIRST_COUNTED = WINDOW // 2  # position
NUM_COUNTED = WINDOW - 1 - FIRST_COUNTED  # positions of a window: the last token predicts nothing in it
BLOCK = 16
CLAMP = 16.0  # nats below the likeliest token
ROWS_AT_ONCE = 64


def log_probabilities(logits: Array) -> Array:
    """Return float32 [positions, vocabulary]."""
    shifted = logits - logits.max(1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return out


def clamp_log_probs(log_probs: Array) -> Array:
    """Raise values that are more than CLAMP below the likeliest token's."""
    out: Array = np.maximum(log_probs, log_probs.max(1, keepdims=True) - np.float32(CLAMP))
    return out


def divergences(expected: Array, actual: Array) -> Array:
    """Return float64 [positions, 2]: KL of `actual` from `expected`, and whether their likeliest token is the same."""
    kl = [
        (np.exp(p) * (p.astype(np.float64) - q)).sum(1)
        for p, q in (
            (expected[at : at + ROWS_AT_ONCE], actual[at : at + ROWS_AT_ONCE])
            for at in range(0, len(expected), ROWS_AT_ONCE)
        )
    ]
    return np.stack([np.concatenate(kl), expected.argmax(1) == actual.argmax(1)], axis=1)
