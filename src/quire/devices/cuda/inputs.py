"""The input buffer of a step: one buffer, one transfer to the GPU.

    ids T · positions T · slots T of each group · logits_at L · draws 7 × L · attention work, for each kind of layer ·
    states · block tables of each group, and of sources

A replayed graph reads the same addresses every time, so offsets depend only on the sizes of the step, padded to those
of its bucket. Block tables come last, because their width changes from step to step: an attention item has the offset
of its row's table among those of all groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.devices._triton.attention_work import (
    COUNT,
    FIRST,
    ROW,
    AttentionKind,
    WorkCounts,
    WorkLimits,
    WorkViews,
    aligned,
    plan_work,
    work_size,
)
from quire.devices._triton.state_work import Chunks, StateLimits, StateRows, StateSizes, cut_rows
from quire.ops.batch import Batch, Draws

from .caches import ALL_TOKENS

Array = NDArray[Any]
NO_MASK = NO_ROW = -1


class StepSizes(NamedTuple):
    """The sizes of a step, or of the bucket that it is padded to."""

    tokens: int
    rows: int
    logits: int
    chunks: int = 0  # of states, and the rows that are cut into them
    scans: int = 0
    drafts: str = ""  # how attention of rows with several tokens is planned (drafted.py); empty: there are none


class StepSplit(NamedTuple):
    """How steps are split: attention, for each kind of layer, and the rows of recurrent layers."""

    attention: Mapping[AttentionKind, WorkLimits]
    states: StateLimits | None = None  # None: no layer has states
    windows: tuple[int, ...] = ()  # reaches of the window groups
    is_single: bool = False  # every token has items of its own, which count the row's tokens up to it

    def group_of(self, kind: AttentionKind) -> int:
        """Return the group whose tables a kind of layers reads: that of all tokens, 1 + a window group's index, or,
        the last one, that of sources."""
        if kind.is_source:
            return 1 + len(self.windows)
        return 1 + self.windows.index(kind.reach) if kind.reach in self.windows else ALL_TOKENS

    def cut(self, batch: Batch) -> Chunks | None:
        """Cut the rows of a step into chunks of states."""
        return None if self.states is None else cut_rows(batch, self.states.has_chunks)

    def size(self, max_tokens: int, max_rows: int) -> int:
        """Return the most numbers that all of it takes."""
        states = 0 if self.states is None else self.states.size(max_tokens, max_rows)
        return states + sum(work_size(each) for each in self.attention.values())


class Inputs(NamedTuple):
    """Views of a buffer: numpy arrays on the host, tensors on the device."""

    ids: Any
    positions: Any
    slots: tuple[Any, ...]  # of each group
    logits_at: Any
    rows: Any  # of draws: the entry of the table of last tokens
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    chance: Any
    mask_at: Any  # [L] index of an entry's mask; NO_MASK: none
    work: dict[AttentionKind, WorkViews]
    states: StateRows | None
    tables: Any  # of all groups: the rest of the buffer

    @classmethod
    def of(cls, buffer: Any, floats: Any, sizes: StepSizes, limits: StepSplit) -> Inputs:
        """Divide a buffer into views. `floats` is the same buffer as float32."""
        num_groups = 1 + len(limits.windows)
        lengths = [sizes.tokens] * (2 + num_groups) + [sizes.logits] * 8
        kinds = [buffer] * (4 + num_groups) + [floats, buffer, floats, floats, floats, buffer]
        views: list[Any] = []
        at = 0
        for kind, length in zip(kinds, lengths, strict=True):
            views.append(kind[at : at + length])
            at += aligned(length)
        work = {}
        for attention, each in limits.attention.items():
            end = at + work_size(each)
            work[attention] = WorkViews.of(buffer[at:end], each)
            at = end
        states = None
        if limits.states is not None:
            num_rows = sizes.rows + bool(sizes.drafts)  # one more for tokens of padding
            states, used = StateRows.of(buffer[at:], StateSizes(sizes.tokens, num_rows, sizes.chunks, sizes.scans))
            at += used
        ids, positions, *others = views
        slots, draws = tuple(others[:num_groups]), others[num_groups:]
        return cls._make([ids, positions, slots, *draws, work, states, buffer[at:]])


class StepLayout(NamedTuple):
    """Where the inputs of a step are in the buffer on the device."""

    sizes: StepSizes
    work: StepSplit
    inputs: Inputs


def fill(
    inputs: Inputs, batch: Batch, limits: StepSplit, chunks: Chunks | None, trash_slots: Sequence[int]
) -> tuple[dict[AttentionKind, WorkCounts], int]:
    """Write a step into the host buffer. Padding writes its K and V to the `trash_slots`, and samples no tokens.

    Return how much work attention has, and the numbers of all block tables.
    """
    if len(batch.windows) != len(limits.windows):
        raise ValueError(f"the step has {len(batch.windows)} window groups, and the program {len(limits.windows)}")
    num_tokens, num_logits = len(batch.token_ids), len(batch.logits_at)
    inputs.ids[:num_tokens] = batch.token_ids
    inputs.positions[:num_tokens] = batch.positions
    inputs.logits_at[:num_logits] = batch.logits_at
    for view in (inputs.ids, inputs.positions):
        view[num_tokens:] = 0
    for view, slots, padding in zip(inputs.slots, of_groups(batch, "slots"), trash_slots, strict=True):
        view[:num_tokens] = slots
        view[num_tokens:] = padding
    inputs.logits_at[num_logits:] = 0
    if batch.draws is not None:
        _fill_draws(inputs, batch.draws)
    of_source = _of_sources(batch)
    tables = [*of_groups(batch, "block_tables"), *([] if of_source is None else [of_source.block_tables])]
    begins, end = _fill_tables(inputs.tables, tables)
    counts = {}
    for attention, views in inputs.work.items():
        read = of_source if attention.is_source else batch
        assert read is not None, "the step has no sources"
        counts[attention] = count = plan_work(read, limits.attention[attention], views)
        if limits.is_single:
            items = views.narrow[: count.narrow]
            items[:, COUNT] = items[:, FIRST] - batch.starts[items[:, ROW]] + 1
        begin, width = begins[limits.group_of(attention)]
        for items in (views.narrow[: count.narrow, ROW], views.wide[: count.wide, ROW]):
            items *= width
            if begin:
                items += begin
        views.num_parts[num_tokens:] = 0
    if inputs.states is not None and limits.states is not None and chunks is not None:
        inputs.states.fill(batch, chunks, limits.states.num_states)
    return counts, end


def _of_sources(batch: Batch) -> Batch | None:
    """Return the batch as layers see it that read sources: with their lengths and tables. None: there are none."""
    if batch.sources is None:
        return None
    lengths, tables = batch.sources.lengths, batch.sources.block_tables
    return replace(batch, lengths=lengths, block_tables=tables, groups=batch.groups[:0])


def of_groups(batch: Batch, name: str) -> list[Array]:
    """Return an array of the step in every group: that of all tokens first."""
    return [getattr(each, name) for each in (batch, *batch.windows)]


def _fill_tables(buffer: Array, tables: Sequence[Array]) -> tuple[list[tuple[int, int]], int]:
    """Write the block tables [R, B] of all groups, one after another; return where each begins, with B, and the end."""
    begins, at = [], 0
    for each in tables:
        begins.append((at, each.shape[1]))
        buffer[at : at + each.size] = each.reshape(-1)
        at += each.size
    return begins, at


def _fill_draws(inputs: Inputs, draws: Draws) -> None:
    count = len(draws.rows)
    for view, array, padding in (
        (inputs.rows, draws.rows, NO_ROW),
        (inputs.temperature, draws.temperature, 0.0),
        (inputs.top_k, draws.top_k, 0),
        (inputs.top_p, draws.top_p, 1.0),
        (inputs.min_p, draws.min_p, 0.0),
        (inputs.chance, draws.chance, 0.0),
    ):
        view[:count] = array
        view[count:] = padding
    inputs.mask_at[:] = NO_MASK
    if draws.masked.any():
        inputs.mask_at[:count][draws.masked] = np.arange(draws.masked.sum(), dtype=np.int32)
