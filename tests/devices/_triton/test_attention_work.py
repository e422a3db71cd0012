"""Planning of attention work: in any step, every token attends to each of its keys exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.devices._triton.attention_work import Capacity, WorkCounts, WorkLimits, WorkViews, plan_work, work_size
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV

pytestmark = pytest.mark.pure

BLOCK = 16
LIMITS = WorkLimits(
    max_tokens=2048, max_rows=64, max_length=8192, kv_heads=2, group=4, num_ctas=24, wide_ctas=12, wide_queries=128
)


def batch_of(texts: list[tuple[int, int]], shared: int = 0) -> Batch:
    """Build a batch of rows with (computed, new) tokens; rows with `shared` full blocks form groups of up to 7."""
    parts, groups = [], []
    for row, (computed, new) in enumerate(texts):
        num_blocks = -(-(computed + new) // BLOCK)
        parts.append(RowPart([0] * new, computed, [*range(num_blocks)]))
        if shared and computed >= shared * BLOCK:
            groups.append((row // 7, row, shared))
    sizes = {group: sum(g == group for g, _, _ in groups) for group, _, _ in groups}
    groups = [each for each in groups if sizes[each[0]] > 1]
    return replace(Batch.of(parts, BLOCK), groups=np.array(groups, np.int32).reshape(-1, 3))


def planned(batch: Batch, limits: WorkLimits) -> tuple[WorkCounts, WorkViews]:
    views = WorkViews.of(np.full(work_size(limits), -99, np.int32), limits)
    return plan_work(batch, limits, views), views


def check_hidden(batch: Batch, limits: WorkLimits, members: list[int], row: int, begin: int) -> None:
    """An item of a layer with a window reads the table of its own row, from the first block that a member sees.

    With fixed chunks it begins earlier, and the kernel leaves out the keys that no member sees.
    """
    assert set(batch.row_of_token[members]) == {row}, "what rows share of all tokens, they need not share in a window"
    spec = PagedKV(1, 8, 8, limits.window, limits.chunk)
    assert limits.fixed_chunk or begin >= spec.first_visible(int(batch.positions[members].min())) // BLOCK * BLOCK


def check(batch: Batch, limits: WorkLimits) -> WorkCounts:
    """Process all items like a kernel, and count which keys every token has seen."""
    counts, views = planned(batch, limits)
    capacity = Capacity.of(limits, len(batch.positions), len(batch.lengths))
    assert all(count <= most for count, most in zip(counts[:3], capacity, strict=True)), (counts, capacity)
    assert views.counts.tolist() == [counts.narrow, counts.wide]
    seen = [np.zeros(position + 1, int) for position in batch.positions]
    parts: list[list[int]] = [[] for _ in batch.positions]
    most = (limits.narrow_tokens, limits.wide_tokens)
    for items, num_tokens in zip((views.narrow[: counts.narrow], views.wide[: counts.wide]), most, strict=True):
        for first, count, row, begin, end, part in items.tolist():
            assert 0 < count <= num_tokens and begin % BLOCK == 0 and begin < end
            if limits.hides_keys:
                check_hidden(batch, limits, views.members[first : first + count].tolist(), row, begin)
            for token in views.members[first : first + count].tolist():
                own = batch.row_of_token[token]
                depth = -(-end // BLOCK)
                assert np.array_equal(batch.block_tables[row][:depth], batch.block_tables[own][:depth])
                assert end <= batch.lengths[batch.block_tables[:, 0] == batch.block_tables[row][0]].max()
                seen[token][begin:end] += 1
                parts[token].append(part)
    held = 0
    for token, position in enumerate(batch.positions.tolist()):
        visible = PagedKV(1, 8, 8, limits.window, limits.chunk).first_visible(position)
        assert (seen[token][visible:] == 1).all() and (seen[token] <= 1).all(), token
        num_parts = int(views.num_parts[token])
        assert sorted(parts[token]) == list(range(num_parts)), token
        if num_parts > 1:
            assert views.first_part[token] == held
            held += num_parts
    assert held == counts.partials
    return counts


texts = st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([1, 1, 1, 2, 4, 5, 33, 100])), min_size=1, max_size=20)
kinds = st.sampled_from(
    [
        {},
        {"window": 1},
        {"window": 333},
        {"chunk": 128},
        {"chunk": 50, "window": 40},
        {"fixed_chunk": 512},
        {"fixed_chunk": 512, "window": 700},
        {"fixed_chunk": 512, "chunk": 900},
        {"split_tokens": 8},
        {"split_tokens": 8, "narrow_queries": 1, "window": 40},
    ]
)


@settings(max_examples=60, deadline=None)
@given(texts, kinds, st.sampled_from([1, 3, 4, 16]), st.integers(0, 60))
def test_every_token_attends_to_each_of_its_keys_once(rows, kind, group, shared):
    kind = {"wide_queries": 64, **kind} if "fixed_chunk" in kind else kind
    check(batch_of(rows, shared), replace(LIMITS, group=group, **kind))


def test_a_row_with_many_drafts_has_several_narrow_items():
    batch = batch_of([(640, 8), (640, 1), (640, 9)])
    assert check(batch, replace(LIMITS, num_ctas=0, wide_ctas=0))[:2] == (1, 2)  # of four tokens at most
    assert check(batch, replace(LIMITS, num_ctas=0, wide_ctas=0, split_tokens=8))[:2] == (3, 1)


def test_one_long_row_fills_the_device():
    assert check(batch_of([(8000, 1)]), LIMITS).narrow == 11  # of a budget of 12, in chunks of 768 keys


def test_many_rows_are_not_split():
    assert check(batch_of([(640, 1)] * 64), LIMITS) == WorkCounts(64, 0, 0)


def test_only_a_row_that_is_longer_than_others_is_split():
    counts, views = planned(batch_of([(100, 1)] * 3 + [(7000, 1)]), LIMITS)
    assert counts.narrow > 10
    lengths = views.narrow[: counts.narrow, 4] - views.narrow[: counts.narrow, 3]
    assert lengths.max() < 1000 and (np.diff(lengths >> 4) <= 0).all()  # and the longest items come first


def test_a_group_is_read_once_and_its_rows_read_only_the_rest():
    counts, views = planned(batch_of([(1100 + n, 1) for n in range(7)], shared=64), LIMITS)
    assert counts.wide == 2 and counts.narrow == 7
    assert views.wide[: counts.wide, 1].tolist() == [7, 7] and set(views.narrow[:7, 3].tolist()) == {1024}


def test_a_group_that_saves_too_little_is_not_used():
    assert check(batch_of([(200, 1), (210, 1)], shared=4), LIMITS).wide == 0


def test_a_whole_prompt_that_is_expanded_has_no_items_and_no_parts():
    texts = [(0, 300), (700, 1), (16, 300), (0, 255), (0, 256)]
    batch, limits = batch_of(texts), replace(LIMITS, expanded_tokens=256)
    counts, views = planned(batch, limits)
    is_expanded = np.isin(batch.row_of_token, (0, 4))
    num_parts = views.num_parts[: len(is_expanded)]
    assert counts.has_expanded and ((num_parts == 0) == is_expanded).all()
    items = np.concatenate([views.narrow[: counts.narrow], views.wide[: counts.wide]])
    assert set(items[:, 2].tolist()) == {1, 2, 3}
    assert planned(batch_of([(0, 300)]), limits)[0] == WorkCounts(0, 0, 0, True)
    assert not planned(batch_of(texts[1:4]), limits)[0].has_expanded


def test_with_fixed_chunks_parts_begin_at_multiples_of_the_chunk():
    counts, views = planned(batch_of([(2000, 1), (30, 90)]), replace(LIMITS, fixed_chunk=512, wide_queries=64))
    assert counts.narrow == 0 and (views.wide[: counts.wide, 3] % 512 == 0).all()


def test_work_that_does_not_fit_is_refused():
    small: Any = replace(LIMITS, max_rows=1, max_tokens=4, num_ctas=2, wide_ctas=2)
    with pytest.raises(ValueError, match="the buffer holds"):
        planned(batch_of([(3, 1)] * 4), small)
