"""A step's numbers on their way to the GPU: one buffer, one transfer.

    ids T · positions T · slots T · logits_at L · draws 7 × L · work of attention, for each window · block tables

A captured step reads them where the one before had them, so their places depend on the sizes of the step alone, padded
to those of its bucket; block tables come last, because their width changes from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.devices._triton.attention_work import ROW, WorkCounts, WorkLimits, WorkViews, aligned, plan_work, size_of
from quire.ops.batch import Batch, Draws

Array = NDArray[Any]
NO_MASK = NOBODY = -1


class Sizes(NamedTuple):
    """Of a step, or of the bucket that it is padded to."""

    tokens: int
    rows: int
    logits: int


class Inputs(NamedTuple):
    """Views of a buffer: numpy arrays of the host's, tensors of the device's."""

    ids: Any
    positions: Any
    slots: Any
    logits_at: Any
    rows: Any  # of draws: where a chosen token is remembered
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    chance: Any
    mask_at: Any  # [L] which of the masks is an entry's; NO_MASK: none
    work: dict[int | None, WorkViews]
    tables: Any  # what is left of the buffer

    @classmethod
    def of(cls, buffer: Any, floats: Any, sizes: Sizes, limits: Mapping[int | None, WorkLimits]) -> Inputs:
        """`floats` is the same buffer as float32."""
        lengths = [sizes.tokens] * 3 + [sizes.logits] * 8
        kinds = [buffer] * 5 + [floats, buffer, floats, floats, floats, buffer]
        views, at = [], 0
        for kind, length in zip(kinds, lengths, strict=True):
            views.append(kind[at : at + length])
            at += aligned(length)
        work = {}
        for window, each in limits.items():
            end = at + size_of(each)
            work[window] = WorkViews.of(buffer[at:end], each)
            at = end
        return cls._make([*views, work, buffer[at:]])


def fill(
    inputs: Inputs, batch: Batch, limits: Mapping[int | None, WorkLimits], trash_slot: int
) -> dict[int | None, WorkCounts]:
    """Write a step into the host's buffer. What pads it writes its K and V to `trash_slot`, and chooses no tokens.

    Answers how much work attention has.
    """
    num_tokens, num_logits = len(batch.token_ids), len(batch.logits_at)
    inputs.ids[:num_tokens] = batch.token_ids
    inputs.positions[:num_tokens] = batch.positions
    inputs.slots[:num_tokens] = batch.slots
    inputs.logits_at[:num_logits] = batch.logits_at
    for view, padding in ((inputs.ids, 0), (inputs.positions, 0), (inputs.slots, trash_slot)):
        view[num_tokens:] = padding
    inputs.logits_at[num_logits:] = 0
    if batch.draws is not None:
        _fill_draws(inputs, batch.draws)
    height, width = batch.block_tables.shape
    inputs.tables[: height * width] = batch.block_tables.reshape(-1)
    counts = {}
    for window, views in inputs.work.items():
        counts[window] = count = plan_work(batch, limits[window], views)
        views.narrow[: count.narrow, ROW] *= width
        views.wide[: count.wide, ROW] *= width
        views.num_parts[num_tokens:] = 0
    return counts


def _fill_draws(inputs: Inputs, draws: Draws) -> None:
    count = len(draws.rows)
    for view, given, padding in (
        (inputs.rows, draws.rows, NOBODY),
        (inputs.temperature, draws.temperature, 0.0),
        (inputs.top_k, draws.top_k, 0),
        (inputs.top_p, draws.top_p, 1.0),
        (inputs.min_p, draws.min_p, 0.0),
        (inputs.chance, draws.chance, 0.0),
    ):
        view[:count] = given
        view[count:] = padding
    inputs.mask_at[:] = NO_MASK
    if draws.masked.any():
        inputs.mask_at[:count][draws.masked] = np.arange(draws.masked.sum(), dtype=np.int32)
