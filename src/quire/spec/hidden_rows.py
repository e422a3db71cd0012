"""Hidden rows of the target, by text and position: what a head drafts from.

The runner of the target adds those of every step. Only the last ones of a text are kept: a head that begins later than
its text drafts a little worse, and costs nothing before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.types.step import StepPlan

Array = NDArray[Any]
MOST_BYTES = 1 << 27  # of the rows of all texts together
LEAST_ROWS, MOST_ROWS = 128, 8192  # of one text


@dataclass(slots=True)
class _Rows:
    """The rows of one text: those of the positions from `first` on."""

    first: int
    count: int
    numbers: Array  # float32 [capacity, dim]

    def put(self, start: int, rows: Array, most: int) -> None:
        """Replace the rows from `start` on."""
        if not self.first <= start <= self.first + self.count:
            self.first, self.count = start, 0
        self.count = start - self.first
        if (excess := self.count + len(rows) - most) > 0:
            dropped = min(self.count, max(excess, most // 2))  # several at once: moving them takes time
            self.numbers[: self.count - dropped] = self.numbers[dropped : self.count]
            self.first, self.count = self.first + dropped, self.count - dropped
            skipped = max(0, len(rows) - most)
            self.first, rows = self.first + skipped, rows[skipped:]
        end = self.count + len(rows)
        if end > len(self.numbers):
            grown = np.empty((min(most, max(end, 2 * len(self.numbers))), rows.shape[1]), np.float32)
            grown[: self.count] = self.numbers[: self.count]
            self.numbers = grown
        self.numbers[self.count : end] = rows
        self.count = end


class HiddenRows:
    """The rows of all texts. Filled by the runner of the target, read by a drafter in the same thread."""

    def __init__(self, dim: int, max_texts: int) -> None:
        self.dim = dim
        self._most = max(LEAST_ROWS, min(MOST_ROWS, MOST_BYTES // (4 * dim * max_texts)))
        self._max_texts = 2 * max_texts  # a step that was in flight when its text ended leaves rows behind
        self._texts: OrderedDict[str, _Rows] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        """The most bytes that all rows take."""
        return self._most * self._max_texts * self.dim * 4

    def features(self, plan: StepPlan) -> Array | None:
        """The target reads no such rows."""
        return None

    def keep(self, plan: StepPlan, hidden: Array) -> None:
        """Take the rows of a step of the target."""
        at = 0
        for part in plan.parts:
            rows = hidden[at : at + part.num_tokens]
            found = self._texts.get(part.request_id)
            if found is None:
                found = self._texts[part.request_id] = _Rows(part.start, 0, np.empty((0, self.dim), np.float32))
            found.put(part.start, rows, self._most)
            at += part.num_tokens
        while len(self._texts) > self._max_texts:
            self._texts.popitem(last=False)

    def known(self, sample_id: str) -> range:
        """Return the positions whose rows are kept."""
        found = self._texts.get(sample_id)
        return range(0) if found is None else range(found.first, found.first + found.count)

    def rows(self, sample_id: str, start: int, end: int) -> Array:
        """Return the rows of these positions, which are known."""
        found = self._texts[sample_id]
        return found.numbers[start - found.first : end - found.first]

    def forget(self, sample_id: str) -> None:
        """The text has ended."""
        self._texts.pop(sample_id, None)
