"""What is cut from a distribution before a token is drawn from it.

Order: temperature, min-p, top-k, typical-p, top-p. Each looks at what the one before it has left, renormalized; this is
the usual order, and it is also the cheapest: min-p is one comparison per entry and needs no softmax, top-k no sort, and
what comes after them sees a few dozen candidates instead of the vocabulary.

All of them take scores x: logits divided by the temperature, the largest moved to 0. They answer indices into x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.largest import RUN, largest
from quire.types.request import SamplingParams

Array = NDArray[Any]

FIRST_LOOK = 64  # candidates among which top-p looks first; then 8 times as many, and so on


def min_p(x: Array, share: float) -> Array:
    """Those at least `share` times as likely as the likeliest."""
    return np.flatnonzero(x >= math.log(share))


def top_p(x: Array, mass: float) -> Array:
    """The fewest of the likeliest that together have `mass`. The one that reaches it is among them."""
    target = mass * np.exp(x).sum(dtype=np.float64)
    count = FIRST_LOOK
    while True:
        near = largest(x, count)
        reached = np.cumsum(np.exp(x[near]), dtype=np.float64)
        if reached[-1] >= target or count >= len(x):
            return near[: int(np.searchsorted(reached, target)) + 1]
        count *= 8


def typical_p(x: Array, mass: float) -> Array:
    """Those whose information is nearest to the distribution's entropy, the fewest that together have `mass`."""
    possible = np.flatnonzero(x > -np.inf)
    log_p = x[possible].astype(np.float64)
    log_p -= np.log(np.exp(log_p).sum())
    p = np.exp(log_p)
    distance = np.abs(log_p - (p * log_p).sum())
    order = np.argsort(distance, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
    kept: Array = possible[order[:count]]
    return kept


def kept_by(params: SamplingParams, x: Array) -> tuple[Array | None, Array]:
    """The indices that all filters of a request leave, and their scores. None: all of x.

    After top-k they are in order of likelihood, whatever was cut before it.
    """
    kept: Array | None = None
    for wanted, cut in (
        (params.min_p > 0.0, lambda x: min_p(x, params.min_p)),
        (0 < params.top_k < len(x), lambda x: largest(x, params.top_k)),
        (params.typical_p < 1.0, lambda x: typical_p(x, params.typical_p)),
        (params.top_p < 1.0, lambda x: top_p(x, params.top_p)),
    ):
        if wanted:
            left = cut(x)
            x = x[left]
            kept = left if kept is None else kept[left]
    return kept, x


def draw(x: Array, chance: float) -> int:
    """The index that a number in [0, 1) falls on when each takes a stretch as long as its probability."""
    weights = np.exp(x)
    num_runs = len(x) // RUN
    if num_runs < FIRST_LOOK:
        reached = np.cumsum(weights, dtype=np.float64)
        return _fall(reached, chance * reached[-1])
    # A running sum over a vocabulary is slow, sums of its runs are fast: find the run, then the place in it.
    whole = weights[: num_runs * RUN].reshape(num_runs, RUN).sum(axis=1, dtype=np.float64)
    sums = np.cumsum(np.append(whole, weights[num_runs * RUN :].sum(dtype=np.float64)))
    target = chance * sums[-1]
    run = _fall(sums, target)
    inside = np.cumsum(weights[run * RUN : (run + 1) * RUN], dtype=np.float64)
    return run * RUN + _fall(inside, target - (sums[run - 1] if run else 0.0))


def _fall(reached: Array, target: float) -> int:
    """Where a running sum passes the target; where it is reached first if rounding puts the target at its very end.

    Either way the weight there is above 0: a token that was ruled out is never drawn.
    """
    at = int(np.searchsorted(reached, target, side="right"))
    return at if at < len(reached) else int(np.searchsorted(reached, reached[-1]))
