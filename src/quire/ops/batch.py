"""The arrays of one step: the tokens of many rows, concatenated without padding.

`Batch` is defined in `ops`, the lowest package of the compute pillar, because references read it and every package
above (graph, devices, runner) may import it from here. The runner fills one in place; `Batch.of` builds one for
examples and tests.

    row 0 |--- 5 tokens ---| row 1 |1| row 2 |-- 3 --|     T = 9, starts = [0, 5, 6, 9]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RowPart(NamedTuple):
    """One row's tokens of a step, before they become arrays."""

    token_ids: Sequence[int]
    start: int  # position of the first token; earlier tokens are already in the cache
    blocks: Sequence[int]  # the row's block table, long enough for the last token
    num_logits: int = 1  # logits are computed for this many of the last tokens
    state: int | None = None  # slot of its state; None: that of its index in the step
    windows: Sequence[Sequence[int]] = ()  # its block table in each window group
    source: tuple[int, Sequence[int]] | None = None  # tokens of its source, and their block table


def _no_triples() -> Array:
    return np.zeros((0, 3), np.int32)


@dataclass(frozen=True, slots=True)
class WindowTables:
    """Where a window group keeps the tokens of a step: int32, like the fields of the batch with these names."""

    slots: Array  # [T]
    block_tables: Array  # [R, B] entries of blocks that no query of this step reads or writes are undefined
    copies: Array = field(default_factory=_no_triples)  # [C, 3]


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the states of a step's rows are: int32. No row reads a slot that another row of the step writes."""

    source: Array  # [R] the slot that a row's state is read from; -1: it begins with zeros
    target: Array  # [R] the slot that it is written to after the row's last token; often the source
    # [S, 2] index into the T tokens, slot: the state after that token is stored there too. Ascending by token.
    saves: Array = field(default_factory=lambda: np.zeros((0, 2), np.int32))


@dataclass(frozen=True, slots=True)
class SourceTables:
    """Where each row's source is: an encoder's output, as keys and values in blocks. int32."""

    lengths: Array  # [R] tokens of the source
    block_tables: Array  # [R, B] entries beyond the blocks that lengths[r] needs are undefined


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling parameters of a step for a device that samples: one entry for each of batch.logits_at.

    Filters are applied in the host's order: grammar mask, temperature, min-p, top-k, top-p. The sampled token is the
    first one, in order of token ids, at which the running sum of probabilities passes `chance`.
    """

    # int32 [L] entry of the device's table of last tokens to write; -1: the host samples, from logits. Adjacent entries
    # with one row are its newest token and drafts after it: any of their tokens is stored.
    rows: Array
    temperature: Array  # float32 [L]; 0: the likeliest token, the smallest id among equal ones
    top_k: Array  # int32 [L]; 0: all
    top_p: Array  # float32 [L]; 1: all
    min_p: Array  # float32 [L]; 0: all
    chance: Array  # float32 [L] in [0, 1)
    masked: Array  # bool [L] a grammar mask arrives later, through Pending.mask; never where rows is -1


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of R rows, L of which yield logits. All arrays are int32. Rows are numbered from 0 within the step."""

    token_ids: Array  # [T] below 0: the token last sampled on the device for entry -1 - token_ids[t] of its table
    positions: Array  # [T] position in the row's whole text
    slots: Array  # [T] where this token's K and V go: block * block_tokens + offset
    row_of_token: Array  # [T]
    starts: Array  # [R + 1] row r has the tokens starts[r]:starts[r + 1], at least one
    lengths: Array  # [R] tokens of the row in the cache after this step has written its own
    # [R, B] entries beyond the blocks that lengths[r] needs are undefined. A row may begin with blocks that another row
    # writes in this step, unless every row has one token: a device writes the keys of all rows before any row reads.
    block_tables: Array
    logits_at: Array  # [L] indices into the T tokens, ascending
    copies: Array = field(default_factory=_no_triples)  # [C, 3] from block, to block, num tokens; copied first
    # [M, 3] group, row, num blocks: the rows of one group, adjacent here, have tables that begin with the same blocks.
    # Only a hint: a device may read those blocks once for the whole group; the references ignore it.
    groups: Array = field(default_factory=_no_triples)
    # [L] how many of the likeliest tokens to return beside the logits; empty: none. A device may leave them out.
    num_top: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    draws: Draws | None = None  # None: the host samples every token. Only for a program that samples.
    windows: tuple[WindowTables, ...] = ()  # of the window groups that the program was lowered with
    states: StateSlots | None = None  # None: no layer has a state
    sources: SourceTables | None = None  # None: no layer reads a source
    features: Array | None = None  # float32 [T, dim]: inputs in place of token ids; None: there are none
    keeps_hidden: bool = True  # False: the step's hidden rows are not read, if the graph has them as outputs
    # [P, 3] first token, token after the last, kind (see ops/pool.py): the tokens of one row that become one vector
    pools: Array = field(default_factory=_no_triples)
    # [T] 1 for tokens of the second of two texts, else 0; empty: no op of the graph reads it
    token_types: Array = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, parts: Sequence[RowPart], block_tokens: int) -> Batch:
        """Build the batch of these parts, in their order."""
        counts = [len(part.token_ids) for part in parts]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tables = np.zeros((len(parts), max((len(part.blocks) for part in parts), default=0)), np.int32)
        for row, part in enumerate(parts):
            tables[row, : len(part.blocks)] = part.blocks
        own = np.array([row if part.state is None else part.state for row, part in enumerate(parts)], np.int32)
        began = np.array([part.start > 0 for part in parts], np.bool_)
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
            windows=_window_tables(parts, row_of_token, positions, block_tokens),
            states=StateSlots(np.where(began, own, -1).astype(np.int32), own),
            sources=_source_tables(parts),
        )

    def in_window(self, index: int | None) -> Batch:
        """The batch as the layers of a window group see it: with the slots and tables of that group.

        It has no `groups`: rows that begin with the same blocks of all tokens may have other blocks in a window.
        """
        if index is None:
            return self
        own = self.windows[index]
        return replace(self, slots=own.slots, block_tables=own.block_tables, copies=own.copies, groups=_no_triples())

    def check(self, num_blocks: int, block_tokens: int) -> None:
        """Assert that the arrays are consistent; for tests and for debugging a device."""
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
        begins, ends, kinds = self.pools.T
        assert ((begins >= 0) & (begins < ends) & (ends <= num_tokens) & (kinds >= 0) & (kinds < 4)).all()
        assert np.array_equal(self.row_of_token[begins], self.row_of_token[ends - 1]), "a pool is of two rows"
        assert len(self.token_types) in (0, num_tokens)
        self._check_groups(block_tokens)
        self._check_draws()
        self._check_states()

    def _check_states(self) -> None:
        if self.states is None:
            return
        source, target, saves = self.states.source, self.states.target, self.states.saves
        num_rows = len(self.lengths)
        assert len(source) == len(target) == num_rows and (target >= 0).all()
        began = self.lengths > np.diff(self.starts)
        assert ((source >= 0) == began).all(), "a state begins with zeros exactly where a text begins"
        written = [*target.tolist(), *saves[:, 1].tolist()]
        assert len(set(written)) == len(written), "two states would be written to the same slot"
        others = [set(written) - {int(target[row])} for row in range(num_rows)]
        assert all(int(source[row]) not in others[row] for row in range(num_rows)), "a row reads what another writes"
        assert (np.diff(saves[:, 0]) >= 0).all() and (saves[:, 0] < len(self.token_ids)).all()

    def _check_draws(self) -> None:
        if self.draws is None:
            assert (self.token_ids >= 0).all(), "a device that does not sample has no last tokens"
            return
        draws, rows = self.draws, self.draws.rows[self.draws.rows >= 0]
        arrays = (draws.rows, draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.chance, draws.masked)
        assert all(len(array) == len(self.logits_at) for array in arrays)
        assert len(np.unique(rows)) == np.count_nonzero(np.diff(rows, prepend=-1)), "a row's tokens are not adjacent"
        assert (draws.rows[draws.masked] >= 0).all(), "a host-sampled row has its mask on the host"
        assert ((draws.chance >= 0) & (draws.chance < 1)).all()

    def _check_groups(self, block_tokens: int) -> None:
        assert len(np.unique(self.groups[:, 1])) == len(self.groups), "a row is in two groups"
        assert (np.diff(self.groups[:, 0]) >= 0).all(), "groups are not in ascending order"
        for group in np.unique(self.groups[:, 0]):
            _, rows, depths = self.groups[self.groups[:, 0] == group].T
            depth = depths[0]
            assert len(rows) > 1 and depth > 0 and (depths == depth).all()
            assert ((rows >= 0) & (rows < len(self.lengths))).all(), "a group names a row that does not exist"
            assert (depth <= -(-self.lengths[rows] // block_tokens)).all(), "a row has fewer blocks than it shares"
            assert (self.block_tables[rows, :depth] == self.block_tables[rows[0], :depth]).all()


def _source_tables(parts: Sequence[RowPart]) -> SourceTables | None:
    given = [part.source for part in parts if part.source is not None]
    if not given:
        return None
    assert len(given) == len(parts), "a row has no source"
    tables = np.zeros((len(given), max(len(blocks) for _, blocks in given)), np.int32)
    for row, (_, blocks) in enumerate(given):
        tables[row, : len(blocks)] = blocks
    return SourceTables(np.array([length for length, _ in given], np.int32), tables)


def _window_tables(
    parts: Sequence[RowPart], row_of_token: Array, positions: Array, block_tokens: int
) -> tuple[WindowTables, ...]:
    groups = []
    for tables_of_group in zip(*(part.windows for part in parts), strict=True):
        tables = np.zeros((len(parts), max(map(len, tables_of_group))), np.int32)
        for row, blocks in enumerate(tables_of_group):
            tables[row, : len(blocks)] = blocks
        slots = tables[row_of_token, positions // block_tokens] * block_tokens + positions % block_tokens
        groups.append(WindowTables(slots.astype(np.int32), tables))
    return tuple(groups)


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int32), *arrays]).astype(np.int32)
