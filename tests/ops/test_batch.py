"""The arrays of a step, as layers of each cache group see them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.ops.batch import Batch, RowPart

pytestmark = pytest.mark.pure


def test_layers_of_a_window_group_see_its_tables_and_no_hint_of_shared_blocks():
    """The rows share a block of all tokens, and none in the window group."""
    parts = [RowPart([1], 20, [5, row], windows=[[8 + row, 3 + row]]) for row in (0, 1)]
    groups = np.array([[0, 0, 1], [0, 1, 1]], np.int32)
    batch = replace(Batch.of(parts, 16), groups=groups)
    batch.check(9, 16)
    assert batch.in_window(None) is batch
    seen = batch.in_window(0)
    assert seen.block_tables.tolist() == [[8, 3], [9, 4]] and seen.slots.tolist() == [3 * 16 + 4, 4 * 16 + 4]
    assert len(batch.groups) == 2 and len(seen.groups) == 0
    replace(seen, windows=()).check(10, 16)
