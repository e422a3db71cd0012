"""What a device must know of each request while it runs: its block table, its newest token, how it samples.

A row belongs to one request from its join to its leave. Only the runner changes rows, in the order of the plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.runner.draws import DrawTable
from quire.sampling.sampler import Sampler
from quire.types.step import Join, Part, StepPlan

Array = NDArray[Any]


class Row:
    """The part of a row's state that is not an array."""

    __slots__ = ("join", "num_sent_blocks", "remembers", "sampler")

    def __init__(self, join: Join, vocab_size: int) -> None:
        self.join = join
        self.sampler = Sampler(join, vocab_size)
        self.remembers = self.sampler.uses_history
        self.num_sent_blocks = len(join.tokens)  # tokens of the text that a sampler that remembers them has heard of

    def hear(self, part: Part) -> None:
        """Tokens that a grammar forced come with the part, not from the sampler: they count for penalties too."""
        if part.tokens is None or not self.remembers:
            return
        num_drafts = max(part.num_logits - 1, 0)
        known = part.tokens[: len(part.tokens) - num_drafts]
        news = known[self.num_sent_blocks - part.start :] if part.start + len(known) > self.num_sent_blocks else ()
        self.sampler.add_tokens(news)
        self.num_sent_blocks += len(news)


class Rows:
    """All rows, as tables that a batch is gathered from."""

    def __init__(self, max_rows: int, max_blocks: int, vocab_size: int) -> None:
        self.block_tables = np.zeros((max_rows, max_blocks), np.int32)
        self.num_blocks = np.zeros(max_rows, np.int32)
        self.last_tokens = np.zeros(max_rows, np.int32)  # sampled last, by the host
        self.is_on_device = np.zeros(max_rows, np.bool_)  # the one sampled last was chosen by the device, which has it
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
        """Rows leave, rows join, tables grow: in this order, since a row that leaves may be taken at once."""
        for row in plan.leaves:
            self._rows.pop(row, None)
        for join in plan.joins:
            joined = Row(join, self._vocab_size)
            self._rows[join.row] = joined
            self.num_blocks[join.row] = 0
            self.num_top[join.row] = joined.sampler.num_top
            self.draws.join(join.row, joined.sampler)
        for part in plan.parts:
            if part.new_blocks:
                held = int(self.num_blocks[part.row])
                total = held + len(part.new_blocks)
                self.block_tables[part.row, held:total] = part.new_blocks
                self.num_blocks[part.row] = total
