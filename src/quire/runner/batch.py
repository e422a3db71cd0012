"""Builds the arrays of a step from its plan, in buffers allocated once. Loops run over parts, never over tokens.

Where the device samples, a row's newest token is on the device: `token_ids` then holds -1 - row instead of the token.

parts          row 7: 3 tokens     row 2: its last sampled     row 5: 4 tokens
token_ids      a b c               x                           d e f g            T = 8
starts         0                   3                           4             8    R + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits
from quire.ops.batch import Batch, Draws, SourceTables, StateSlots, WindowTables
from quire.runner.pooling import part_pools
from quire.runner.rows import Rows
from quire.types.kinds import PoolKind
from quire.types.step import Part, SharedPrefix, StepPlan

Array = NDArray[Any]
NONE: Array = np.zeros(0, np.int32)
NO_SAVES: Array = np.zeros((0, 2), np.int32)
NO_POOLS: Array = np.zeros((0, 3), np.int32)
FEW_ROWS = 4  # for so few rows single assignments are faster than numpy calls, whose code has left the cache


class BuiltBatch(NamedTuple):
    """A step's arrays, and where its tokens are sampled."""

    batch: Batch
    rows: Array  # int32 [R] of its parts
    # Every part yields one token, which the device samples, or which is the likeliest where the host samples.
    is_simple: bool
    host_sampled: tuple[int, ...] = ()  # parts that the host samples although the device samples the others
    kept: Array = NONE  # int32 the rows whose tokens the device samples and keeps for the next step
    returned: Array = NONE  # int32 the rows whose newest token the host knows once the step is collected

    def mark_launched(self, rows: Rows) -> None:
        """Record in `rows` where the tokens of this step will be. Called once the device has accepted the step."""
        if self.batch.draws is not None:
            rows.is_on_device[self.kept] = True
            rows.is_on_device[self.returned] = False


class _DeviceDraws(NamedTuple):
    """How the device samples a step, and where the tokens of its parts will be."""

    draws: Draws | None = None  # None: the device does not sample
    host_sampled: tuple[int, ...] = ()
    kept: Array = NONE
    returned: Array = NONE


class _Entries(NamedTuple):
    """Which tokens yield logits, and to which parts these belong."""

    at: Array  # int32 [L]
    counts: Array  # int32 [R] how many each part has
    ends: Array  # int32 [R] where they end
    scoring: list[int]  # parts that score their prompt
    is_one_each: bool


@dataclass(slots=True)
class _RunningStep:
    """The last step, if every part of it was the next token of a running request."""

    built: BuiltBatch
    rows: list[int]
    starts: list[int]  # expected in the next step, if each request advances by one token
    groups: tuple[SharedPrefix, ...]
    moving: Array  # [3 + W, R] the batch's positions, lengths and slots, and its slots in each window group
    steps_left: int  # steps until a row needs more blocks than the batch's tables hold


class BatchBuilder:
    """Owns the buffers. A batch consists of views of them, so it is valid until the next one is built."""

    def __init__(self, limits: Limits, device_samples: bool = False, pool: PoolKind | None = None) -> None:
        """`pool`: how the vectors of tokens are pooled; None: the program does not pool."""
        self._pool = pool
        self._block_tokens = limits.block_tokens
        self._device_samples = device_samples
        self._token_ids, self._row_of_token = (np.zeros(limits.max_tokens, np.int32) for _ in range(2))
        most = max(limits.max_tokens, limits.max_rows)
        self._moving = np.zeros((3 + len(limits.windows), most), np.int32)  # grow by one with each token
        self._positions, self._lengths, self._slots, *self._window_slots = self._moving
        self._starts = np.zeros(limits.max_rows + 1, np.int32)
        self._tables = np.zeros(limits.max_rows * limits.max_blocks, np.int32)  # flat: [R, B] of any step is contiguous
        self._window_tables = [np.zeros_like(self._tables) for _ in limits.windows]
        # The slots of states: read from, written to. None: the program has no states.
        self._states = np.zeros((2, limits.max_rows), np.int32) if limits.num_states else None
        self._has_sources = limits.num_source_blocks > 0
        self._count = np.arange(max(most, limits.max_logits) + 1, dtype=np.int32)  # 0, 1, 2, …
        self._ones = np.ones(limits.max_rows, np.int32)
        self._last_step: _RunningStep | None = None

    def build(self, plan: StepPlan, rows: Rows, masked: Sequence[int] = ()) -> BuiltBatch:
        """Build the arrays of this plan, which `rows` was updated with. The masks of parts in `masked` come later."""
        last = self._last_step
        if last is not None and self._continues(last, plan) and not masked:
            self._advance(last, rows)
            return last.built
        built = self._build(plan, rows, masked)
        self._last_step = None
        if not _has_copies(plan) and not masked and all(p.tokens is None and p.num_logits == 1 for p in plan.parts):
            starts = [part.start + 1 for part in plan.parts]
            steps_left = built.batch.block_tables.shape[1] * self._block_tokens - max(starts)
            moving = self._moving[:, : len(starts)]
            self._last_step = _RunningStep(
                built, [part.row for part in plan.parts], starts, plan.groups, moving, steps_left
            )
        return built

    def _continues(self, last: _RunningStep, plan: StepPlan) -> bool:
        """Is this the last step again, with each row one token further?"""
        parts = plan.parts
        if plan.joins or len(parts) != len(last.rows) or _has_copies(plan):
            return False
        if last.steps_left <= 0 or plan.groups != last.groups:
            return False
        for part, row, start in zip(parts, last.rows, last.starts, strict=True):
            if part.start != start or part.row != row or part.tokens is not None:
                return False
        return True

    def _advance(self, last: _RunningStep, rows: Rows) -> None:
        """Hot path of a single stream: set a few numbers instead of making some twenty numpy calls."""
        batch, row = last.built.batch, last.built.rows
        size = self._block_tokens
        if len(last.rows) <= FEW_ROWS and not self._device_samples:
            moving, ids, tokens, crossing = last.moving, batch.token_ids, rows.last_tokens, []
            for index, start in enumerate(last.starts):
                ids[index] = tokens[last.rows[index]]
                for kind in range(len(moving)):
                    moving[kind, index] += 1
                if start % size == 0:
                    crossing.append(index)
        else:
            last.moving += 1
            self._fill_sampled(batch.token_ids, row, rows)
            crossing = np.flatnonzero(batch.positions % size == 0).tolist()
        if crossing:
            at = batch.positions[crossing] // size
            block = rows.block_tables[row[crossing], at]
            batch.block_tables[crossing, at] = block
            batch.slots[crossing] = block * size
            for window, held in zip(batch.windows, rows.window_tables, strict=True):
                block = held[row[crossing], at]
                window.block_tables[crossing, at] = block
                window.slots[crossing] = block * size
        if batch.draws is not None:
            rows.draws.move(batch.draws, row, batch.lengths)
        last.starts = [start + 1 for start in last.starts]
        last.steps_left -= 1

    def _build(self, plan: StepPlan, rows: Rows, masked: Sequence[int]) -> BuiltBatch:
        parts = plan.parts
        num_rows = len(parts)
        row = np.fromiter([part.row for part in parts], np.int32, num_rows)
        first = np.fromiter([part.start for part in parts], np.int32, num_rows)
        counts = np.fromiter([1 if p.tokens is None else len(p.tokens) for p in parts], np.int32, num_rows)
        starts, lengths = self._starts[: num_rows + 1], self._lengths[:num_rows]
        np.cumsum(counts, out=starts[1:])
        np.add(first, counts, out=lengths)
        num_tokens = int(starts[-1])
        self._fill_tokens(parts, row, rows)
        width = int(rows.num_blocks[row].max())
        tables = _gather(rows.block_tables, row, width, self._tables)
        positions = self._positions[:num_tokens]
        if num_tokens == num_rows:  # hot path: one token each
            row_of_token = self._count[:num_rows]
            positions[:] = first
        else:
            row_of_token = self._row_of_token[:num_tokens]
            row_of_token[:] = np.repeat(self._count[:num_rows], counts)
            np.add((first - starts[:-1])[row_of_token], self._count[:num_tokens], out=positions)
        block, offset = np.divmod(positions, np.int32(self._block_tokens))
        slots = self._fill_slots(self._slots, tables, (row_of_token, block), offset)
        entries = self._entries(parts, starts)
        sampled = lengths if entries.is_one_each else positions[entries.at] + np.int32(1)
        draws = self._draws(entries, row, rows, sampled, masked)
        wanted = NONE if self._device_samples else self._wanted(parts, entries, row, rows)
        batch = Batch(
            token_ids=self._token_ids[:num_tokens],
            positions=positions,
            slots=slots,
            row_of_token=row_of_token,
            starts=starts,
            lengths=lengths,
            block_tables=tables,
            logits_at=entries.at,
            copies=np.array(plan.copies, np.int32).reshape(-1, 3),
            groups=self._groups_of(plan, lengths),
            num_top=wanted,
            draws=draws.draws,
            windows=self._windows(plan, rows, row, (row_of_token, block), offset) if rows.window_tables else (),
            states=self._state_slots(plan, rows, row) if self._states is not None else None,
            sources=SourceTables(rows.source_lengths[row], rows.source_tables[row]) if self._has_sources else None,
            pools=self._pools(parts, starts, rows),
        )
        is_simple = entries.is_one_each and not draws.host_sampled and np.count_nonzero(wanted == 1) == len(wanted)
        return BuiltBatch(batch, row, is_simple, *draws[1:])

    def _pools(self, parts: tuple[Part, ...], starts: Array, rows: Rows) -> Array:
        if self._pool is None or not any(part.is_pooled for part in parts):
            return NO_POOLS
        return part_pools(parts, starts, [rows[part.row].join.num_prompt for part in parts], self._pool)

    def _fill_tokens(self, parts: tuple[Part, ...], row: Array, rows: Rows) -> None:
        """Fill in the tokens of each part; a part without tokens continues with the row's newest sampled token."""
        starts, ids = self._starts, self._token_ids
        sampled = [index for index, part in enumerate(parts) if part.tokens is None]
        if len(sampled) == len(parts):
            self._fill_sampled(ids[: len(parts)], row, rows)
            return
        if sampled:
            newest = np.empty(len(sampled), np.int32)
            self._fill_sampled(newest, row[sampled], rows)
            ids[starts[sampled]] = newest
        if not sampled and len(parts) > FEW_ROWS:
            tokens = chain.from_iterable([part.tokens or () for part in parts])
            ids[: starts[len(parts)]] = np.fromiter(tokens, np.int32, starts[len(parts)])
            return
        for index, part in enumerate(parts):
            if part.tokens is not None:
                ids[starts[index] : starts[index + 1]] = part.tokens

    def _fill_sampled(self, ids: Array, row: Array, rows: Rows) -> None:
        """Fill in each row's newest sampled token, or -1 - row where that is on the device."""
        np.take(rows.last_tokens, row, out=ids, mode="clip")
        if self._device_samples:
            np.copyto(ids, -1 - row, where=rows.is_on_device[row])

    def _fill_slots(self, buffer: Array, tables: Array, place: tuple[Array, Array], offset: Array) -> Array:
        """Return the slot of each token: `place` is its row and its index in the row's table."""
        slots = buffer[: len(offset)]
        np.multiply(tables[place], self._block_tokens, out=slots)
        slots += offset
        return slots

    def _windows(
        self, plan: StepPlan, rows: Rows, row: Array, place: tuple[Array, Array], offset: Array
    ) -> tuple[WindowTables, ...]:
        """Return the slots, tables and copies of the window groups."""
        width = int(rows.num_blocks[row].max())
        windows = []
        for index, held in enumerate(rows.window_tables):
            tables = _gather(held, row, width, self._window_tables[index])
            slots = self._fill_slots(self._window_slots[index], tables, place, offset)
            copies = plan.window_copies[index] if plan.window_copies else ()
            windows.append(WindowTables(slots, tables, np.array(copies, np.int32).reshape(-1, 3)))
        return tuple(windows)

    def _state_slots(self, plan: StepPlan, rows: Rows, row: Array) -> StateSlots:
        """Return where each row's state is read from and written to, and the states stored inside the step."""
        assert self._states is not None
        source, target = self._states[:, : len(row)]
        np.take(rows.state_sources, row, out=source, mode="clip")
        np.take(rows.state_targets, row, out=target, mode="clip")
        if not plan.saves:
            return StateSlots(source, target, NO_SAVES)
        # Position p of a row that begins with token s at position q: the state after the token s + p - 1 - q.
        first = {part.row: int(self._starts[index]) - part.start - 1 for index, part in enumerate(plan.parts)}
        saves = sorted((first[row] + position, slot) for row, position, slot in plan.saves if row in first)
        return StateSlots(source, target, np.array(saves, np.int32).reshape(-1, 2))

    def _groups_of(self, plan: StepPlan, lengths: Array) -> Array:
        """Return the plan's groups [M, 3] as rows of this step, without rows that have no part in it.

        A table may hold blocks beyond the row's length: the shared prefix ends where the shortest row ends.
        """
        index_of = {part.row: index for index, part in enumerate(plan.parts)} if plan.groups else {}
        members: list[tuple[int, int, int]] = []
        for number, group in enumerate(plan.groups):
            rows = [index_of[row] for row in group.rows if row in index_of]
            if len(rows) > 1:
                depth = min(group.num_blocks, -(-int(lengths[rows].min()) // self._block_tokens))
                members += [(number, row, depth) for row in rows]
        return np.array(members, np.int32).reshape(-1, 3)

    def _entries(self, parts: tuple[Part, ...], starts: Array) -> _Entries:
        num_logits = [part.num_logits for part in parts]
        scoring = [index for index, part in enumerate(parts) if part.scores_prompt]
        if not scoring and num_logits.count(1) == len(parts):  # hot path
            ends = self._count[1 : len(parts) + 1]
            return _Entries(starts[1:] - np.int32(1), self._ones[: len(parts)], ends, scoring, True)
        counts = np.array(num_logits, np.int32)
        for index in scoring:
            counts[index] = logits_of(parts[index])
        ends = np.cumsum(counts, dtype=np.int32)
        at = np.repeat(starts[1:] - ends, counts)
        at += self._count[: len(at)]
        return _Entries(at, counts, ends, scoring, False)

    def _wanted(self, parts: tuple[Part, ...], entries: _Entries, row: Array, rows: Rows) -> Array:
        """Return how many of the likeliest tokens the host needs for each entry; 0, for prompt scores: all logits."""
        wanted: Array = rows.num_top[row]
        if entries.is_one_each:
            return wanted
        wanted = np.repeat(wanted, entries.counts)
        for index in entries.scoring:
            end = entries.ends[index]
            wanted[end - entries.counts[index] : end - parts[index].num_logits] = 0
        return wanted

    def _draws(
        self, entries: _Entries, row: Array, rows: Rows, positions: Array, masked: Sequence[int]
    ) -> _DeviceDraws:
        """Return how the device samples the tokens at these positions [L], drafts included."""
        if not self._device_samples:
            return _DeviceDraws()
        counts = entries.counts
        yields = counts > 0
        device_sampled = rows.draws.can_run_on_device[row] & yields
        device_sampled[entries.scoring] = False
        draws = rows.draws.draws(np.repeat(row, counts), np.repeat(device_sampled, counts), positions)
        for index in masked:
            if device_sampled[index]:
                draws.masked[entries.ends[index] - counts[index] : entries.ends[index]] = True
        is_kept = device_sampled & (counts == 1)  # of drafts, the host finds the last one that holds
        host_sampled = tuple(np.flatnonzero(yields & ~device_sampled).tolist())
        return _DeviceDraws(draws, host_sampled, row[is_kept], row[yields & ~is_kept])


def _gather(held: Array, row: Array, width: int, buffer: Array) -> Array:
    """Return the block tables [R, B] of these rows; B is the largest number of blocks of a row in this step."""
    tables = buffer[: len(row) * width].reshape(len(row), width)
    np.take(held[:, :width], row, axis=0, out=tables, mode="clip")
    return tables


def _has_copies(plan: StepPlan) -> bool:
    """Does the step copy blocks, or change where states are read or written?"""
    return bool(plan.copies or plan.states or plan.saves or plan.window_copies)


def logits_of(part: Part) -> int:
    """Return how many of a part's last positions yield logits: all of them, if it scores its prompt."""
    return len(part.tokens or ()) if part.scores_prompt else part.num_logits
