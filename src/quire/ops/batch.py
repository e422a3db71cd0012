"""The arrays of one step: tokens of many rows, one after the other, no padding.

`Batch` lives with the ops, the lowest package of the compute pillar, because references read it and everything above
(graph, devices, runner) may import it from here. The runner fills one in place; `Batch.of` makes one for examples and
tests.

    row 0 |--- 5 tokens ---| row 1 |1| row 2 |-- 3 --|     T = 9, starts = [0, 5, 6, 9]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RowPart(NamedTuple):
    """One row's share of a step, before it becomes arrays."""

    token_ids: Sequence[int]
    start: int  # position of the first of them: what came before is in the cache already
    blocks: Sequence[int]  # the row's block table, long enough for the last of them
    num_logits: int = 1  # of the last tokens, how many yield logits


def _no_triples() -> Array:
    return np.zeros((0, 3), np.int32)


@dataclass(frozen=True, slots=True)
class Draws:
    """How a device that chooses tokens chooses this step's: one entry for each of batch.logits_at.

    The order is that of the host's filters: a grammar's mask, temperature, min-p, top-k, top-p. What is left is drawn
    from in the order of token ids: the first token at which the sum of probabilities passes `chance`.
    """

    rows: Array  # int32 [L] whose token it is, in the device's table of last tokens; -1: the host chooses, from logits
    temperature: Array  # float32 [L]; 0: the likeliest, the smallest id of equal ones
    top_k: Array  # int32 [L]; 0: all
    top_p: Array  # float32 [L]; 1: all
    min_p: Array  # float32 [L]; 0: all
    chance: Array  # float32 [L] in [0, 1)
    masked: Array  # bool [L] a grammar's mask comes later, by Pending.mask; never where rows is -1


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of R rows, L of which yield logits. All arrays are int32. Rows are counted in this step, from 0."""

    token_ids: Array  # [T] below 0: the token that the device chose last for the row -1 - token_ids[t] of its own table
    positions: Array  # [T] place in the row's whole text
    slots: Array  # [T] where this token's K and V go: block * block_tokens + offset
    row_of_token: Array  # [T]
    starts: Array  # [R + 1] row r has the tokens starts[r]:starts[r + 1]; none of them is empty
    lengths: Array  # [R] tokens of the row in the cache once this step has written its own
    # [R, B] beyond the blocks that lengths[r] needs, entries mean nothing. A row may begin with blocks that another row
    # writes in this step, unless every row has one token: a device writes the keys of all rows before any row reads.
    block_tables: Array
    logits_at: Array  # [L] indices into the T tokens, ascending
    copies: Array = field(default_factory=_no_triples)  # [C, 3] from block, to block, num tokens: before anything else
    # [M, 3] group, row, num blocks: rows of one group, next to each other here, whose tables begin with the same
    # blocks. A hint and no meaning: a device may read those blocks once for all of them; the references do not look.
    groups: Array = field(default_factory=_no_triples)
    # [L] how many of the likeliest tokens are wanted beside the logits; empty: none. A device may leave them out.
    wanted: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    draws: Draws | None = None  # None: the host chooses every token. Only for a program that chooses tokens.

    @classmethod
    def of(cls, parts: Sequence[RowPart], block_tokens: int) -> Batch:
        """The batch of these parts, in their order."""
        counts = [len(part.token_ids) for part in parts]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tables = np.zeros((len(parts), max((len(part.blocks) for part in parts), default=0)), np.int32)
        for row, part in enumerate(parts):
            tables[row, : len(part.blocks)] = part.blocks
        row_of_token = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        positions = _joined([np.arange(part.start, part.start + n) for part, n in zip(parts, counts, strict=True)])
        return cls(
            token_ids=_joined([np.asarray(part.token_ids, np.int32) for part in parts]),
            positions=positions,
            slots=tables[row_of_token, positions // block_tokens] * block_tokens + positions % block_tokens,
            row_of_token=row_of_token,
            starts=starts,
            lengths=np.array([part.start + n for part, n in zip(parts, counts, strict=True)], np.int32),
            block_tables=tables,
            logits_at=_joined([np.arange(starts[r + 1] - p.num_logits, starts[r + 1]) for r, p in enumerate(parts)]),
        )

    def check(self, num_blocks: int, block_tokens: int) -> None:
        """Prove that the arrays agree with each other; for tests and for a device that is being debugged."""
        counts = np.diff(self.starts)
        num_tokens, num_rows = len(self.token_ids), len(self.lengths)
        assert (counts > 0).all() and self.starts[0] == 0 and self.starts[-1] == num_tokens
        assert np.array_equal(self.row_of_token, np.repeat(np.arange(num_rows), counts))
        offset = np.arange(num_tokens) - self.starts[self.row_of_token]
        assert np.array_equal(self.positions, (self.lengths - counts)[self.row_of_token] + offset)
        assert (self.positions >= 0).all()
        block = self.block_tables[self.row_of_token, self.positions // block_tokens]
        assert np.array_equal(self.slots, block * block_tokens + self.positions % block_tokens)
        assert len(np.unique(self.slots)) == num_tokens, "two tokens would write the same slot"
        assert (self.slots >= 0).all() and (self.slots < num_blocks * block_tokens).all()
        assert (np.diff(self.logits_at) > 0).all() and (self.logits_at < num_tokens).all()
        self._check_groups(block_tokens)
        self._check_draws()

    def _check_draws(self) -> None:
        if self.draws is None:
            assert (self.token_ids >= 0).all(), "only a device that chooses tokens has chosen any"
            return
        draws, chosen = self.draws, self.draws.rows[self.draws.rows >= 0]
        arrays = (draws.rows, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.chance, draws.masked)
        assert all(len(array) == len(self.logits_at) for array in arrays)
        assert len(np.unique(chosen)) == len(chosen), "a row has two last tokens"
        assert (draws.rows[draws.masked] >= 0).all(), "the host has the masks of what it chooses"
        assert ((draws.chance >= 0) & (draws.chance < 1)).all()

    def _check_groups(self, block_tokens: int) -> None:
        assert len(np.unique(self.groups[:, 1])) == len(self.groups), "a row is in two groups"
        assert (np.diff(self.groups[:, 0]) >= 0).all(), "groups are told one after the other"
        for group in np.unique(self.groups[:, 0]):
            _, rows, depths = self.groups[self.groups[:, 0] == group].T
            depth = depths[0]
            assert len(rows) > 1 and depth > 0 and (depths == depth).all()
            assert ((rows >= 0) & (rows < len(self.lengths))).all(), "there is no such row"
            assert (depth <= -(-self.lengths[rows] // block_tokens)).all(), "a row does not have what it shares"
            assert (self.block_tables[rows, :depth] == self.block_tables[rows[0], :depth]).all()


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int32), *arrays]).astype(np.int32)
