"""Read the distributions that llama-perplexity writes with --kl-divergence-base.

    "_logits_"  int32 window, vocabulary, number of windows   int32 tokens[windows][window]
    then for each counted position: float32 step, float32 minimum, uint16 n[vocabulary, rounded up to an even number]

A token's log-probability is step * n + minimum, clamped to 16 below the likeliest token's.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.bench.accuracy.divergence import NUM_COUNTED, WINDOW

Array = NDArray[Any]

MAGIC = b"_logits_"


def read_head(file: BinaryIO) -> tuple[Array, int]:
    """Return the windows' tokens, int32 [windows, WINDOW], and the size of the vocabulary."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("not a file of llama-perplexity's distributions")
    window, vocab, num_windows = struct.unpack("<3i", file.read(12))
    if window != WINDOW:
        raise ValueError(f"the file has windows of {window} tokens instead of {WINDOW}")
    tokens = np.frombuffer(file.read(4 * WINDOW * num_windows), "<i4")
    return tokens.reshape(num_windows, WINDOW), vocab


def read_window(file: BinaryIO, vocab: int) -> Array:
    """Return the log-probabilities at one window's counted positions: float32 [NUM_COUNTED, vocabulary]."""
    width = 4 + (vocab + 1) // 2 * 2  # uint16s of a position
    rows = np.frombuffer(file.read(2 * width * NUM_COUNTED), "<u2").reshape(NUM_COUNTED, width)
    step, minimum = np.ascontiguousarray(rows[:, :4]).view("<f4").T[:, :, None]  # [NUM_COUNTED, 1] each
    out: Array = rows[:, 4 : 4 + vocab] * step + minimum
    return out
