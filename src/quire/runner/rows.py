"""What is kept of each running request: its block tables, its state's slot, its newest token, its sampler.

A row belongs to one request from its join to its leave. Only the runner changes rows, in the order of the plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits
from quire.runner.draws import DrawTable
from quire.runner.pooling import VectorSum
from quire.runner.state_digests import TextDigest
from quire.sampling.sampler import Sampler
from quire.types.step import Join, Part, StepPlan

Array = NDArray[Any]


class Row:
    """The part of a row's state that is not an array."""

    __slots__ = ("join", "num_recorded", "sampler", "text", "uses_history", "vector")

    def __init__(self, join: Join, vocab_size: int) -> None:
        self.join = join
        self.text: TextDigest | None = None  # of its tokens so far, if states are checked
        self.vector: VectorSum | None = None  # of the parts so far, if the request is pooled
        self.sampler = Sampler(join, vocab_size)
        self.uses_history = self.sampler.uses_history
        self.num_recorded = len(join.tokens)  # tokens of the text that its sampler has recorded, if it keeps them

    def record_forced(self, part: Part) -> None:
        """Record the part's tokens that a grammar forced: the sampler did not choose them, but penalties count them."""
        if part.tokens is None or not self.uses_history:
            return
        num_drafts = max(part.num_logits - 1, 0)
        known = part.tokens[: len(part.tokens) - num_drafts]
        new = known[self.num_recorded - part.start :] if part.start + len(known) > self.num_recorded else ()
        self.sampler.add_tokens(new)
        self.num_recorded += len(new)


class Rows:
    """All rows, as tables that a batch is gathered from."""

    def __init__(self, limits: Limits, vocab_size: int) -> None:
        max_rows = limits.max_rows
        self.block_tables = np.zeros((max_rows, limits.max_blocks), np.int32)
        self.num_blocks = np.zeros(max_rows, np.int32)
        self.window_tables = [np.zeros_like(self.block_tables) for _ in limits.windows]  # behind a window: undefined
        self.state_targets = np.zeros(max_rows, np.int32)  # the slot that its state is written to
        self.state_sources = np.zeros(max_rows, np.int32)  # and read from in the plan's step; -1: begins with zeros
        self._moved: list[int] = []  # rows whose source was changed by the last plan: the next one reads the target
        self.source_lengths = np.zeros(max_rows, np.int32)
        self.source_tables = np.zeros((max_rows, limits.max_source_blocks), np.int32)
        self.last_tokens = np.zeros(max_rows, np.int32)  # newest sampled token, where the host sampled it
        self.is_on_device = np.zeros(max_rows, np.bool_)  # the newest sampled token is on the device, which sampled it
        self.num_top = np.zeros(max_rows, np.int32)  # likeliest tokens that the sampler needs; 0: all logits
        self.draws = DrawTable(max_rows)
        self._vocab_size = vocab_size
        self._rows: dict[int, Row] = {}

    def __getitem__(self, row: int) -> Row:
        return self._rows[row]

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, plan: StepPlan) -> list[Row]:
        """The rows of a plan's parts."""
        rows = self._rows
        return [rows[part.row] for part in plan.parts]

    def update(self, plan: StepPlan) -> None:
        """Apply leaves, then joins, then new blocks: a row that leaves may be reused by a join of the same plan."""
        for row in plan.leaves:
            self._rows.pop(row, None)
        for join in plan.joins:
            joined = Row(join, self._vocab_size)
            self._rows[join.row] = joined
            self.num_blocks[join.row] = 0
            self.num_top[join.row] = joined.sampler.num_top
            self.draws.join(join.row, joined.sampler)
            if join.source is not None:
                self.source_lengths[join.row] = join.source.num_tokens
                self.source_tables[join.row, : len(join.source.blocks)] = join.source.blocks
        for part in plan.parts:
            if part.new_blocks:
                held = int(self.num_blocks[part.row])
                total = held + len(part.new_blocks)
                self.block_tables[part.row, held:total] = part.new_blocks
                self.num_blocks[part.row] = total
        for change in plan.tables:
            end = change.first + len(change.blocks)
            self.window_tables[change.group][change.row, change.first : end] = change.blocks
        if self._moved or plan.states:
            self._move_states(plan)

    def _move_states(self, plan: StepPlan) -> None:
        self.state_sources[self._moved] = self.state_targets[self._moved]
        self._moved = [change.row for change in plan.states]
        for row, source, target in plan.states:
            self.state_sources[row], self.state_targets[row] = source, target
