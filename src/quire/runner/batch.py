"""A plan becomes the arrays of a step: buffers made once and filled in place, looping over parts but not over tokens.

parts          row 7: 3 tokens     row 2: its last sampled     row 5: 4 tokens
token_ids      a b c               x                           d e f g            T = 8
starts         0                   3                           4             8    R + 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits
from quire.ops.batch import Batch
from quire.runner.rows import Rows
from quire.types.step import Part, SharedPrefix, StepPlan

Array = NDArray[Any]
FEW_ROWS = 4  # up to which a number at a time is faster than an array's call, whose code has left the cache


@dataclass(slots=True)
class _Streams:
    """The last step, if every part of it was a stream's next token."""

    row: Array
    rows: list[int]
    starts: list[int]  # what they are if each of them goes on by one token
    groups: tuple[SharedPrefix, ...]
    batch: Batch
    moving: Array  # [3, R] the batch's positions, lengths and slots


class BatchBuilder:
    """Owns the buffers. A batch is made of views of them, so it is good until the next one is built."""

    def __init__(self, limits: Limits) -> None:
        self._block_tokens = limits.block_tokens
        self._token_ids, self._row_of_token = (np.zeros(limits.max_tokens, np.int32) for _ in range(2))
        self._moving = np.zeros((3, max(limits.max_tokens, limits.max_rows)), np.int32)  # what grows with a stream
        self._positions, self._lengths, self._slots = self._moving
        self._starts = np.zeros(limits.max_rows + 1, np.int32)
        self._tables = np.zeros(limits.max_rows * limits.max_blocks, np.int32)  # flat: [R, B] of any step is contiguous
        self._logits_at = np.zeros(limits.max_logits, np.int32)
        self._wanted = np.zeros(limits.max_logits, np.int32)
        self._count = np.arange(max(limits.max_tokens, limits.max_rows), dtype=np.int32)  # 0, 1, 2, …
        self._streams: _Streams | None = None

    def build(self, plan: StepPlan, rows: Rows) -> Batch:
        """The arrays of this plan. Its joins and new blocks are in `rows` already."""
        if self._streams is not None and self._goes_on(self._streams, plan):
            return self._next_of(self._streams, rows)
        batch, row = self._build(plan, rows)
        self._streams = None
        if all(part.tokens is None for part in plan.parts) and not plan.copies:
            starts = [part.start + 1 for part in plan.parts]
            rows_of = [part.row for part in plan.parts]
            self._streams = _Streams(row, rows_of, starts, plan.groups, batch, self._moving[:, : len(starts)])
        return batch

    def _goes_on(self, last: _Streams, plan: StepPlan) -> bool:
        """Is this the last step again, one token further in the same blocks?"""
        if plan.joins or plan.copies or len(plan.parts) != len(last.rows) or plan.groups != last.groups:
            return False
        for part, row, start in zip(plan.parts, last.rows, last.starts, strict=True):
            if part.start != start or part.row != row or part.tokens is not None or start % self._block_tokens == 0:
                return False
        return True

    def _next_of(self, last: _Streams, rows: Rows) -> Batch:
        """One stream alone waits for this between two tokens: a few numbers instead of some twenty calls."""
        if len(last.rows) <= FEW_ROWS:
            moving, ids, tokens = last.moving, last.batch.token_ids, rows.last_tokens
            for index, row in enumerate(last.rows):
                ids[index] = tokens[row]
                for kind in range(3):
                    moving[kind, index] += 1
        else:
            last.moving += 1
            rows.last_tokens.take(last.row, out=last.batch.token_ids, mode="clip")
        last.starts = [start + 1 for start in last.starts]
        return last.batch

    def _build(self, plan: StepPlan, rows: Rows) -> tuple[Batch, Array]:
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
        tables = self._gather_tables(row, rows)
        positions = self._positions[:num_tokens]
        if num_tokens == num_rows:  # one token each: most steps of most days
            row_of_token = self._count[:num_rows]
            positions[:] = first
        else:
            row_of_token = self._row_of_token[:num_tokens]
            row_of_token[:] = np.repeat(self._count[:num_rows], counts)
            np.add((first - starts[:-1])[row_of_token], self._count[:num_tokens], out=positions)
        slots = self._slots[:num_tokens]
        block, offset = np.divmod(positions, np.int32(self._block_tokens))
        np.multiply(tables[row_of_token, block], self._block_tokens, out=slots)
        slots += offset
        logits_at = self._fill_logits(parts, starts, rows)
        batch = Batch(
            token_ids=self._token_ids[:num_tokens],
            positions=positions,
            slots=slots,
            row_of_token=row_of_token,
            starts=starts,
            lengths=lengths,
            block_tables=tables,
            logits_at=logits_at,
            copies=np.array(plan.copies, np.int32).reshape(-1, 3),
            groups=self._groups_of(plan, lengths),
            wanted=self._wanted[: len(logits_at)],
        )
        return batch, row

    def _fill_tokens(self, parts: tuple[Part, ...], row: Array, rows: Rows) -> None:
        """Known tokens come with the part; where there are none, the token is the one that the row sampled last."""
        starts, ids = self._starts, self._token_ids
        sampled = [index for index, part in enumerate(parts) if part.tokens is None]
        if len(sampled) == len(parts):
            np.take(rows.last_tokens, row, out=ids[: len(parts)], mode="clip")
            return
        if sampled:
            ids[starts[sampled]] = rows.last_tokens[row[sampled]]
        for index, part in enumerate(parts):
            if part.tokens is not None:
                ids[starts[index] : starts[index + 1]] = part.tokens

    def _gather_tables(self, row: Array, rows: Rows) -> Array:
        """[R, B], B the most blocks that a row of this step has."""
        width = int(rows.num_blocks[row].max())
        tables = self._tables[: len(row) * width].reshape(len(row), width)
        np.take(rows.block_tables[:, :width], row, axis=0, out=tables, mode="clip")
        return tables

    def _groups_of(self, plan: StepPlan, lengths: Array) -> Array:
        """[M, 3]: the plan's groups in rows of this step, without the rows that have no part in it.

        A table may hold blocks that its row has not come to yet: what is shared ends where the shortest row does.
        """
        index_of = {part.row: index for index, part in enumerate(plan.parts)} if plan.groups else {}
        members: list[tuple[int, int, int]] = []
        for number, group in enumerate(plan.groups):
            rows = [index_of[row] for row in group.rows if row in index_of]
            if len(rows) > 1:
                depth = min(group.num_blocks, -(-int(lengths[rows].min()) // self._block_tokens))
                members += [(number, row, depth) for row in rows]
        return np.array(members, np.int32).reshape(-1, 3)

    def _fill_logits(self, parts: tuple[Part, ...], starts: Array, rows: Rows) -> Array:
        """Where logits are needed, and how many likeliest tokens for sampling; scores of a prompt need all logits."""
        num_logits = 0
        for index, part in enumerate(parts):
            count = logits_of(part)
            if count:
                end = starts[index + 1]
                self._logits_at[num_logits : num_logits + count] = self._count[end - count : end]
                if part.scores_prompt:
                    self._wanted[num_logits : num_logits + count - part.num_logits] = 0
                sampled = slice(num_logits + count - part.num_logits, num_logits + count)
                self._wanted[sampled] = rows[part.row].sampler.num_wanted
                num_logits += count
        return self._logits_at[:num_logits]


def logits_of(part: Part) -> int:
    """How many of a part's last positions yield a distribution: all of them, if it scores its prompt."""
    return len(part.tokens or ()) if part.scores_prompt else part.num_logits
