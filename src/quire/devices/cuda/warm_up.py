"""Steps of every kind that a program runs, so that all kernels are compiled before the first request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from quire.devices._triton.state_work import NO_SLOT
from quire.devices.base import Limits
from quire.ops.batch import Batch, Draws, RowPart, StateSlots
from quire.ops.pool import MEAN, SUM

from .sources import source_blocks
from .tiles import BUCKETS

UNSTREAMED = BUCKETS[-1] + 1  # tokens
SHARED_TOKENS = 2048  # tokens that sharing must save from being read, before attention uses shared items


def largest_steps(limits: Limits) -> Iterator[Batch]:
    """Yield steps of the maximum number of tokens, in rows of the maximum length: whole rows, and continued ones.

    Latent attention computes them in different forms, and both need memory.
    """
    longest = limits.max_blocks * limits.block_tokens
    length = min(longest, limits.max_tokens)
    num_rows = min(limits.max_tokens // length, limits.max_rows)
    yield _step([(0, length)] * num_rows, limits)
    if longest > limits.block_tokens:
        yield _step([(limits.block_tokens, min(length, longest - limits.block_tokens))] * num_rows, limits)


def warm_up_steps(limits: Limits, token_counts: Iterable[int] = ()) -> Iterator[Batch]:
    """Yield a step of each kind, and prompts of these numbers of tokens."""
    row_counts = sorted({min(limits.max_rows, each + 1) for each in BUCKETS[:-1]})  # one in each bucket of products
    many, longest = row_counts[0], limits.max_blocks * limits.block_tokens
    context = min(3 * limits.block_tokens, longest - 1)
    yield from largest_steps(limits)
    yield _step([(context, 1)], limits)
    yield _step([(context, 1)], limits, temperature=0.7)
    yield _step([(context, 1)] * many, limits, temperature=0.7)
    for rows in row_counts:
        yield _step([(context, 1)] * rows, limits)
        if rows + UNSTREAMED <= limits.max_tokens:
            yield _step([(context, 1)] * (rows - 1) + [(0, min(longest, UNSTREAMED))], limits)
    for count in token_counts:
        if count <= min(limits.max_tokens, longest):
            yield _step([(0, count)], limits)
    shared = -(-SHARED_TOKENS // max(many - 1, 1) // limits.block_tokens)
    if many > 1 and shared < limits.max_blocks:
        batch = _step([(shared * limits.block_tokens, 1)] * many, limits)
        yield replace(batch, groups=np.array([(0, row, shared) for row in range(many)], np.int32))


def whole_text_steps(limits: Limits) -> Iterator[Batch]:
    """Yield steps of one whole text, one in each bucket of products, as an encoder runs them."""
    counts = {1 + each for each in (0, *BUCKETS)} | {UNSTREAMED + 15}  # kernels differ by whether 16 divides the tokens
    for count in sorted({min(each, limits.max_tokens) for each in counts}):
        batch = Batch.of([RowPart([0] * count, 0, range(-(-count // limits.block_tokens)), count)], limits.block_tokens)
        yield replace(batch, pools=np.array([(0, count, MEAN)], np.int32), token_types=np.zeros(count, np.int32))


def with_pools(steps: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the steps, and again as steps that also pool a token."""
    for batch in steps:
        yield batch
        yield replace(batch, pools=np.array([(0, 1, SUM)], np.int32))


def _step(rows: Sequence[tuple[int, int]], limits: Limits, temperature: float = 0.0) -> Batch:
    """Return a step of rows with (computed, new) tokens. All rows write to the same blocks and to the state for
    padding, which are never read."""
    blocks = list(range(max(-(-(computed + new) // limits.block_tokens) for computed, new in rows)))
    windows = [[block % each.num_blocks for block in blocks] for each in limits.windows]
    held = source_blocks(limits)
    source = (held * limits.block_tokens, range(held)) if held else None
    parts = [RowPart([0] * new, computed, blocks, windows=windows, source=source) for computed, new in rows]
    batch = Batch.of(parts, limits.block_tokens)
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
    slots = np.full(count, limits.num_states or limits.max_rows, np.int32)
    return replace(batch, draws=draws, states=StateSlots(np.full(count, NO_SLOT, np.int32), slots))
