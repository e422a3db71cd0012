"""Counter-based random numbers: the same (seed, sample, position) gives the same number in any batch.

With a sequential generator a request's text would depend on other requests, on preemption and on drafts. Here every
number is a hash (SplitMix64) of where it is used, so there is no state to keep.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: successive multiples are evenly spread


def _mix(x: int) -> int:
    """A bijection of 64 bits in which every output bit depends on every bit of x."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream_of(seed: int, sample: int) -> int:
    """Return the stream of one sample of a request; `seed` may be any integer."""
    return _mix(_mix((seed + _GOLDEN) & _MASK) + (sample + 1) * _GOLDEN & _MASK)


def uniform(stream: int, position: int) -> float:
    """Return the stream's number for the token at this position: in [0, 1), with 53 bits."""
    return (_mix((stream + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def uniforms(streams: Array, positions: Array) -> Array:
    """`uniform` of many streams (uint64), each at its own position, float64."""
    x = streams + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    numbers: Array = (x >> np.uint64(11)) * 2.0**-53
    return numbers
