"""Which tokens of a step become vectors, and the vectors of texts that were computed in several parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.ops.pool import MEAN, SUM, WEIGHTED_MEAN, WEIGHTED_SUM
from quire.types.errors import StepFailed
from quire.types.kinds import PoolKind
from quire.types.step import Part, PartResult

Array = NDArray[Any]


def whole_pools(starts: Array, kind: PoolKind) -> Array:
    """Return the pools [R, 3] of rows that are whole texts, which begin at `starts` [R + 1]."""
    begins, ends = starts[:-1], starts[1:]
    code = WEIGHTED_MEAN if kind is PoolKind.WEIGHTED else MEAN
    if kind is PoolKind.CLS:
        ends = begins + 1
    elif kind is PoolKind.LAST:
        begins = ends - 1
    return np.stack([begins, ends, np.full_like(begins, code)], axis=1).astype(np.int32)


def part_pools(parts: Sequence[Part], starts: Array, num_prompts: Sequence[int], kind: PoolKind) -> Array:
    """Return the pools [P, 3] of parts: sums, because a text may be computed in several parts.

    `num_prompts`: the tokens of each part's whole text.
    """
    pools = []
    for part, begin, end, whole in zip(parts, starts[:-1].tolist(), starts[1:].tolist(), num_prompts, strict=True):
        if has_pool(part, whole, kind):
            first, past = {PoolKind.CLS: (begin, begin + 1), PoolKind.LAST: (end - 1, end)}.get(kind, (begin, end))
            pools.append((first, past, WEIGHTED_SUM if kind is PoolKind.WEIGHTED else SUM))
    return np.array(pools, np.int32).reshape(-1, 3)


def has_pool(part: Part, num_prompt: int, kind: PoolKind) -> bool:
    """Does this part compute tokens that its text's vector is made of?"""
    if not part.is_pooled or kind.reads_all:
        return part.is_pooled
    return part.start == 0 if kind is PoolKind.CLS else part.start + part.num_tokens == num_prompt


class VectorSum:
    """The vector of one text, while its parts are computed."""

    __slots__ = ("_kind", "_total")

    def __init__(self, kind: PoolKind) -> None:
        self._kind = kind
        self._total: Array | None = None

    def add(self, vector: Array) -> None:
        """Add the sum over the tokens of one part."""
        self._total = vector.copy() if self._total is None else self._total + vector

    def whole(self, num_prompt: int) -> Array:
        """Return the vector of the text, float32."""
        assert self._total is not None
        weight = num_prompt * (num_prompt + 1) // 2 if self._kind is PoolKind.WEIGHTED else num_prompt
        total: Array = self._total / np.float32(weight) if self._kind.reads_all else self._total
        return total


def vector_result(vector: Array) -> PartResult:
    """The result of a text. One with numbers that are none fails alone."""
    if not np.isfinite(vector).all():
        return PartResult(error=StepFailed("The model computed no valid vector for this text."))
    return PartResult(vector=np.ascontiguousarray(vector, np.float32).tobytes())
