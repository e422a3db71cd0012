"""Log probabilities of the raw logits, before temperature, filters and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.largest import largest
from quire.types.step import TokenLogprobs

Array = NDArray[Any]


def logprobs_of(logits: Array, token: int, num_top: int) -> TokenLogprobs:
    """Return the log probability of `token` by logits [vocab], and those of the `num_top` likeliest tokens."""
    high = logits.max()
    total = high + np.log(np.exp(logits - high).sum(dtype=np.float64))
    top = largest(logits, min(num_top, len(logits))) if num_top else np.zeros(0, np.int64)
    pairs = zip(top.tolist(), (logits[top] - total).tolist(), strict=True)
    return TokenLogprobs(token, float(logits[token] - total), tuple(pairs))


def score(logits: Array, targets: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Return the log probabilities of a known text: logits [n, vocab], row i for targets[i]."""
    return tuple(logprobs_of(logits[i], target, num_top) for i, target in enumerate(targets))
