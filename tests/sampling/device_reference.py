"""The tokens that a device must sample, computed one entry at a time with the host's filters."""

from __future__ import annotations

import numpy as np

from quire.ops.batch import Draws
from quire.sampling.filters import apply_filters
from quire.sampling.mask import allowed_ids
from quire.types.request import SamplingParams


def kept_tokens(
    logits: np.ndarray, draws: Draws, entry: int, bits: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens [k], ascending, that the filters keep of logits [vocab], and their scores."""
    ids = np.arange(len(logits)) if bits is None else allowed_ids(bits, len(logits))
    x = logits[ids].astype(np.float32)
    params = SamplingParams(
        temperature=float(draws.temperature[entry]),
        top_k=int(draws.top_k[entry]),
        top_p=float(draws.top_p[entry]),
        min_p=float(draws.min_p[entry]),
    )
    with np.errstate(over="ignore"):
        x = (x - x.max()) / draws.temperature[entry]
    left, x = apply_filters(params, x)
    if left is None:
        return ids, x
    order = np.argsort(left)
    return ids[left[order]], x[order]


def expected_token(logits: np.ndarray, draws: Draws, entry: int, bits: np.ndarray | None = None) -> int:
    """Return the token of one entry for logits [vocab] and a grammar mask; -1: there is none."""
    ids = np.arange(len(logits)) if bits is None else allowed_ids(bits, len(logits))
    if not len(ids) or not np.isfinite(logits[ids].max()):
        return -1
    if draws.temperature[entry] == 0.0:
        return int(ids[logits[ids].argmax()])
    ids, x = kept_tokens(logits, draws, entry, bits)
    sums = np.cumsum(np.exp(x), dtype=np.float64)
    at = int(np.searchsorted(sums, float(draws.chance[entry]) * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])
