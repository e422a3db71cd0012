"""Filters that cut a distribution before a token is drawn from it.

Order: temperature, min-p, top-k, typical-p, top-p. Each filter sees what the one before has kept, renormalized. This is
the usual order, and the cheapest: min-p is one comparison per entry and needs no softmax, top-k needs no sort, and the
later filters see a few dozen candidates instead of the vocabulary.

All of them take scores x: logits divided by the temperature, shifted so that the largest is 0. They return indices
into x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.largest import RUN, largest
from quire.types.request import SamplingParams

Array = NDArray[Any]

FIRST_LOOK = 64  # top-p first examines this many candidates, then 8 times as many, and so on


def min_p(x: Array, share: float) -> Array:
    """Keep tokens at least `share` times as likely as the likeliest."""
    return np.flatnonzero(x >= math.log(share))


def top_p(x: Array, mass: float) -> Array:
    """Keep the fewest likeliest tokens whose probabilities sum to `mass` or more."""
    target = mass * np.exp(x).sum(dtype=np.float64)
    count = FIRST_LOOK
    while True:
        candidates = largest(x, count)
        sums = np.cumsum(np.exp(x[candidates]), dtype=np.float64)
        if sums[-1] >= target or count >= len(x):
            return candidates[: int(np.searchsorted(sums, target)) + 1]
        count *= 8


def typical_p(x: Array, mass: float) -> Array:
    """Keep the fewest tokens nearest to the distribution's entropy whose probabilities sum to `mass` or more."""
    possible = np.flatnonzero(x > -np.inf)
    log_p = x[possible].astype(np.float64)
    log_p -= np.log(np.exp(log_p).sum())
    p = np.exp(log_p)
    distance = np.abs(log_p - (p * log_p).sum())
    order = np.argsort(distance, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
    kept: Array = possible[order[:count]]
    return kept


def apply_filters(params: SamplingParams, x: Array) -> tuple[Array | None, Array]:
    """Return the indices that all filters of a request keep, and their scores. None: all of x.

    After top-k they are in order of likelihood.
    """
    kept: Array | None = None
    for is_on, cut in (
        (params.min_p > 0.0, lambda x: min_p(x, params.min_p)),
        (0 < params.top_k < len(x), lambda x: largest(x, params.top_k)),
        (params.typical_p < 1.0, lambda x: typical_p(x, params.typical_p)),
        (params.top_p < 1.0, lambda x: top_p(x, params.top_p)),
    ):
        if is_on:
            left = cut(x)
            x = x[left]
            kept = left if kept is None else kept[left]
    return kept, x


def sample_index(x: Array, chance: float) -> int:
    """Return the index that `chance` in [0, 1) selects by the inverse of the cumulative distribution."""
    weights = np.exp(x)
    num_runs = len(x) // RUN
    if num_runs < FIRST_LOOK:
        sums = np.cumsum(weights, dtype=np.float64)
        return _index_at(sums, chance * sums[-1])
    # A running sum over a vocabulary is slow, sums of runs are fast: find the run, then the index in it.
    whole = weights[: num_runs * RUN].reshape(num_runs, RUN).sum(axis=1, dtype=np.float64)
    sums = np.cumsum(np.append(whole, weights[num_runs * RUN :].sum(dtype=np.float64)))
    target = chance * sums[-1]
    run = _index_at(sums, target)
    inside = np.cumsum(weights[run * RUN : (run + 1) * RUN], dtype=np.float64)
    return run * RUN + _index_at(inside, target - (sums[run - 1] if run else 0.0))


def _index_at(sums: Array, target: float) -> int:
    """Return the index at which a running sum passes the target.

    If rounding puts the target at the very end, it is the first index that reaches the total. Either way the weight
    there is above 0: a token that was ruled out is never drawn.
    """
    at = int(np.searchsorted(sums, target, side="right"))
    return at if at < len(sums) else int(np.searchsorted(sums, sums[-1]))
