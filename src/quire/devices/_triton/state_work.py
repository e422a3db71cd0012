"""The states of a step's rows as kernels of recurrent layers read them: slots, and long parts of rows cut into chunks.

A row with few tokens in the step is computed token by token. A longer one is cut at the multiples of `CHUNK` of its
text, and after every token whose state is saved, so that states are saved only at the ends of chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.ops.batch import Batch

from .attention_work import aligned

Array = NDArray[Any]

CHUNK = 64  # tokens
MAX_STEPS = 16  # tokens of a row that is computed token by token although it could be cut into chunks
NO_SLOT = -1
CHUNK_FIELDS, SCAN_FIELDS = 2, 3


class StateLimits(NamedTuple):
    """The slots of a program's states, and whether long rows are cut into chunks."""

    num_states: int  # the slot of this number is for padding
    has_chunks: bool

    def size(self, max_tokens: int, max_rows: int) -> int:
        """Return the most numbers that the rows of a step take. One more row may be padding."""
        rows = StateSizes(max_tokens, max_rows + 1, max_tokens, max_rows)
        return sum(aligned(length) for length in rows.lengths)


class StateSizes(NamedTuple):
    """The sizes of a step."""

    tokens: int
    rows: int
    chunks: int
    scans: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of each field of `StateRows`."""
        return (
            self.rows, self.rows, self.rows + 1, self.tokens, self.tokens, CHUNK_FIELDS * self.chunks,
            SCAN_FIELDS * self.scans,
        )  # fmt: skip


class StateRows(NamedTuple):
    """Views of a buffer, int32: numpy arrays on the host, tensors on the device."""

    source: Any  # [R] the slot that a row's state is read from; NO_SLOT: zeros
    target: Any  # [R] the slot that it is written to after the row's last token
    starts: Any  # [R + 1]
    row_of_token: Any  # [T]
    saves: Any  # [T] a slot that the state after a token is written to as well; NO_SLOT: none
    chunks: Any  # [C, 2] first token, end
    scans: Any  # [S, 3] row, first chunk, end: the rows that are cut into chunks

    @classmethod
    def of(cls, buffer: Any, sizes: StateSizes) -> tuple[StateRows, int]:
        """Divide a buffer into views; return them and the numbers that they take."""
        views, at = [], 0
        for length in sizes.lengths:
            views.append(buffer[at : at + length])
            at += aligned(length)
        *flat, chunks, scans = views
        return cls._make([*flat, chunks.reshape(-1, CHUNK_FIELDS), scans.reshape(-1, SCAN_FIELDS)]), at

    def fill(self, batch: Batch, chunks: Chunks, spare: int) -> None:
        """Write a step. Rows of padding begin with zeros and write to the slot `spare`.

        Each has a token of padding: if there are too few, the last rows have none; if too many, the last has the rest.
        """
        states, num_rows, num_tokens = batch.states, len(batch.lengths), len(batch.token_ids)
        assert states is not None, "a recurrent layer needs the slots of its rows"
        self.source[:num_rows], self.target[:num_rows] = states.source, states.target
        self.source[num_rows:], self.target[num_rows:] = NO_SLOT, spare
        self.starts[: num_rows + 1] = batch.starts
        all_rows, all_tokens = len(self.source), len(self.row_of_token)
        assert all_rows > num_rows or all_tokens == num_tokens, "tokens of padding need a row"
        if all_rows > num_rows:
            self.starts[num_rows + 1 :] = np.arange(num_tokens + 1, num_tokens + all_rows - num_rows + 1)
            self.starts[num_rows + 1 :].clip(max=all_tokens, out=self.starts[num_rows + 1 :])
            self.starts[-1] = all_tokens
        self.row_of_token[:num_tokens] = batch.row_of_token
        self.row_of_token[num_tokens:] = np.arange(num_rows, num_rows + all_tokens - num_tokens).clip(max=all_rows - 1)
        self.saves[:] = NO_SLOT
        tokens, slots = states.saves.T
        assert len(np.unique(tokens)) == len(tokens), "a state is saved twice after one token"
        self.saves[tokens] = slots
        self.chunks[:], self.scans[:] = chunks.chunks, chunks.scans

    def fill_padding(self, spare: int) -> None:
        """Write a step of rows of padding alone, on the device."""
        self.source.fill_(NO_SLOT)
        self.target.fill_(spare)
        self.saves.fill_(NO_SLOT)
        all_rows, all_tokens = len(self.source), len(self.row_of_token)
        for each, most in ((self.starts, all_tokens), (self.row_of_token, all_rows - 1)):
            each.copy_((each.new_ones(len(each)).cumsum(0) - 1).clamp(max=most))
        self.starts[-1:].fill_(all_tokens)


class Chunks(NamedTuple):
    """The chunks of a step, and the rows that are cut into them."""

    chunks: Array  # [C, 2]
    scans: Array  # [S, 3]


def cut_rows(batch: Batch, has_chunks: bool = True) -> Chunks:
    """Cut the long rows of a step into chunks."""
    counts = np.diff(batch.starts)
    chunks, scans = [np.zeros((0, CHUNK_FIELDS), np.int32)], []
    num_chunks = 0
    for row in np.flatnonzero(counts > MAX_STEPS) if has_chunks else ():
        start, end = batch.starts[row], batch.starts[row + 1]
        first = start + CHUNK - batch.positions[start] % CHUNK
        saved = np.zeros(0, np.int32) if batch.states is None else 1 + batch.states.saves[:, 0]
        saved = saved[(saved > start) & (saved < end)]
        cuts = np.unique(np.concatenate([[start, end], np.arange(first, end, CHUNK), saved]))
        chunks.append(np.stack([cuts[:-1], cuts[1:]], axis=1))
        scans.append((row, num_chunks, num_chunks + len(cuts) - 1))
        num_chunks += len(cuts) - 1
    return Chunks(np.concatenate(chunks), np.array(scans, np.int32).reshape(-1, SCAN_FIELDS))
