"""Collects the queries of a text and the keys of its source, of the heads that align each token with the source.

The decoder's graph outputs these queries as hidden rows. The keys are stored by slot, beside the blocks of sources. A
request of the kind `align` returns both; their products are the attention that locates words (`speech/alignment.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.types.source import SourceBlocks
from quire.types.step import PartResult

if TYPE_CHECKING:
    from quire.runner.flight import Flight

Array = NDArray[Any]


class Alignment:
    """The alignment rows of one model. Only the runner uses it, in the order of the steps."""

    def __init__(self, columns: Array, num_slots: int, block_tokens: int) -> None:
        """`columns`: the columns of the pairs of all layers that are keys of these heads."""
        self._columns, self._block_tokens = columns, block_tokens
        self._keys = np.zeros((num_slots, len(columns)), np.float32)  # by slot of a source
        self._queries: dict[int, list[Array]] = {}  # by row: of the parts so far

    def store(self, slots: Array, pairs: Array) -> None:
        """Store the keys of source tokens. `pairs`: keys and values of all layers."""
        self._keys[slots] = pairs[:, self._columns]

    def take(self, flight: Flight, queries: Array, results: tuple[PartResult, ...]) -> tuple[PartResult, ...]:
        """Return the results, with rows of queries, then of keys, for texts whose last part was computed."""
        found, at = list(results), 0
        for index, (part, row) in enumerate(zip(flight.plan.parts, flight.rows, strict=True)):
            rows = queries[at : at + part.num_tokens]
            at += part.num_tokens
            if not part.is_pooled:
                continue
            if not part.start:
                self._queries[part.row] = []
            kept = self._queries[part.row]
            kept.append(rows)
            if part.start + part.num_tokens == row.join.num_prompt:
                assert row.join.source is not None
                keys = self._keys[source_slots(row.join.source, self._block_tokens)]
                del self._queries[part.row]
                found[index] = PartResult(vector=np.concatenate([*kept, keys]).tobytes())
        return tuple(found)


def source_slots(source: SourceBlocks, block_tokens: int) -> Array:
    """Return the slots of a source's tokens, in order."""
    slots = np.array(source.blocks, np.int32)[:, None] * block_tokens + np.arange(block_tokens, dtype=np.int32)
    return np.ascontiguousarray(slots.reshape(-1)[: source.num_tokens])
