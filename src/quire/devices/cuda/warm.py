"""Steps of every kind that a program meets, so that its kernels are compiled before anybody waits for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from quire.devices.base import Limits
from quire.ops.batch import Batch, Draws, RowPart

from .tiles import BUCKETS

UNSTREAMED = BUCKETS[-1] + 1  # tokens
SHARED_TOKENS = 2048  # that rows must save one another from reading, before attention reads them once


def largest(limits: Limits) -> Batch:
    """As many tokens as a step may have, in rows as long as a context may be."""
    length = min(limits.max_blocks * limits.block_tokens, limits.max_tokens)
    counts = [length] * min(limits.max_tokens // length, limits.max_rows)
    return _step([(0, count) for count in counts], limits)


def steps(limits: Limits) -> Iterator[Batch]:
    """One of each kind."""
    crowds = sorted({min(limits.max_rows, each + 1) for each in BUCKETS[:-1]})  # of products: one in each bucket
    many, longest = crowds[0], limits.max_blocks * limits.block_tokens
    context = min(3 * limits.block_tokens, longest - 1)
    yield largest(limits)
    yield _step([(context, 1)], limits)
    yield _step([(context, 1)], limits, temperature=0.7)
    yield _step([(context, 1)] * many, limits, temperature=0.7)
    for rows in crowds:
        yield _step([(context, 1)] * rows, limits)
        if rows + UNSTREAMED <= limits.max_tokens:
            yield _step([(context, 1)] * (rows - 1) + [(0, min(longest, UNSTREAMED))], limits)
    shared = -(-SHARED_TOKENS // max(many - 1, 1) // limits.block_tokens)
    if many > 1 and shared < limits.max_blocks:
        batch = _step([(shared * limits.block_tokens, 1)] * many, limits)
        yield replace(batch, groups=np.array([(0, row, shared) for row in range(many)], np.int32))


def _step(rows: Sequence[tuple[int, int]], limits: Limits, temperature: float = 0.0) -> Batch:
    """(computed, new) tokens of each row. They all write to the same blocks: nobody will read them."""
    blocks = list(range(max(-(-(computed + new) // limits.block_tokens) for computed, new in rows)))
    batch = Batch.of([RowPart([0] * new, computed, blocks) for computed, new in rows], limits.block_tokens)
    count = len(rows)
    numbers = np.zeros(count, np.float32)
    draws = Draws(
        rows=np.arange(count, dtype=np.int32),
        temperature=numbers + np.float32(temperature),
        top_k=np.zeros(count, np.int32),
        top_p=numbers + 1,
        min_p=numbers,
        chance=numbers,
        masked=np.zeros(count, np.bool_),
    )
    return replace(batch, draws=draws)
