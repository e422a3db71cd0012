"""The hidden rows that are kept of texts."""

from __future__ import annotations

import numpy as np
import pytest

from quire.spec.hidden_rows import LEAST_ROWS, HiddenRows
from quire.types.step import Part, StepPlan

pytestmark = pytest.mark.pure
DIM = 3


def rows_of(start: int, count: int, mark: float = 0.0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.float32)[:, None] + np.float32([mark, 0, 0])


def step(hidden: HiddenRows, *parts: tuple[str, int, int], mark: float = 0.0) -> None:
    plan = StepPlan(1, tuple(Part(name, 0, start, (0,) * count, 1, ()) for name, start, count in parts))
    hidden.keep(plan, np.concatenate([rows_of(start, count, mark) for _, start, count in parts]))


def test_rows_of_a_step_belong_to_its_texts() -> None:
    hidden = HiddenRows(DIM, 4)
    step(hidden, ("a", 0, 5), ("b", 7, 2))
    step(hidden, ("a", 5, 1))
    assert hidden.known("a") == range(6) and hidden.known("b") == range(7, 9) and not hidden.known("c")
    assert np.array_equal(hidden.rows("a", 2, 6), rows_of(2, 4))
    assert np.array_equal(hidden.rows("b", 7, 9), rows_of(7, 2))


def test_rows_after_a_rejected_draft_are_replaced() -> None:
    hidden = HiddenRows(DIM, 4)
    step(hidden, ("a", 0, 8))
    step(hidden, ("a", 5, 2), mark=100.0)
    assert hidden.known("a") == range(7)
    assert np.array_equal(hidden.rows("a", 4, 7), np.concatenate([rows_of(4, 1), rows_of(5, 2, 100.0)]))


def test_rows_begin_again_after_a_gap() -> None:
    hidden = HiddenRows(DIM, 4)
    step(hidden, ("a", 0, 4))
    step(hidden, ("a", 9, 2))
    assert hidden.known("a") == range(9, 11)


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_only_the_last_rows_are_kept(chunk: int) -> None:
    hidden = HiddenRows(1 << 20, 64)
    hidden.dim = DIM
    assert hidden._most == LEAST_ROWS
    for start in range(0, 3000, chunk):
        step(hidden, ("a", start, chunk))
    known = hidden.known("a")
    assert known.stop == -(-3000 // chunk) * chunk and LEAST_ROWS // 2 <= len(known) <= LEAST_ROWS
    assert np.array_equal(hidden.rows("a", known.start, known.stop), rows_of(known.start, len(known)))


def test_a_text_that_ended_leaves_nothing_behind() -> None:
    hidden = HiddenRows(DIM, 2)
    step(hidden, ("a", 0, 4))
    hidden.forget("a")
    assert not hidden.known("a")
    for number in range(20):
        step(hidden, (f"late {number}", 0, 1))
    assert len(hidden._texts) == 4, "of steps that were in flight when their texts ended, few are kept"
