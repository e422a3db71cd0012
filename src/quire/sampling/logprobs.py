"""Log probabilities of the model's own distribution: raw logits, before temperature, filters and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.largest import largest
from quire.types.step import TokenLogprobs

Array = NDArray[Any]


def logprobs_of(logits: Array, token: int, num_top: int) -> TokenLogprobs:
    """Of one token by logits [vocab], with the `num_top` likeliest."""
    high = logits.max()
    total = high + np.log(np.exp(logits - high).sum(dtype=np.float64))
    top = largest(logits, min(num_top, len(logits))) if num_top else np.zeros(0, np.int64)
    pairs = zip(top.tolist(), (logits[top] - total).tolist(), strict=True)
    return TokenLogprobs(token, float(logits[token] - total), tuple(pairs))


def score(logits: Array, targets: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Of a text that is known: logits [n, vocab], of which row i tells of targets[i]."""
    return tuple(logprobs_of(logits[i], target, num_top) for i, target in enumerate(targets))
