"""The arrays built from a plan, compared with those that `Batch.of` builds the slow way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.devices.base import Limits, WindowLimits
from quire.ops.batch import Batch, Draws, RowPart
from quire.runner.batch import BatchBuilder
from quire.runner.rows import Rows
from quire.sampling.counter import uniform
from quire.types.request import SamplingParams
from quire.types.step import CopyBlock, Join, Part, SaveState, SharedPrefix, StateChange, StepPlan, TableChange
from tests.runner.stand_in import OBJECTS

pytestmark = pytest.mark.pure

LIMITS = Limits(max_tokens=200, max_rows=8, max_logits=200, max_blocks=12, num_blocks=100, block_tokens=4)
HYBRID = replace(LIMITS, windows=(WindowLimits(8, 100), WindowLimits(20, 100)), num_states=16)


def arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Return the arrays of a batch by name, those of window groups and states too, without the draws."""
    found = {name: getattr(batch, name) for name in Batch.__slots__ if name not in OBJECTS}
    for index, window in enumerate(batch.windows):
        found |= {f"{name} of window group {index}": getattr(window, name) for name in window.__slots__}
    if batch.states is not None:
        found |= {f"states.{name}": getattr(batch.states, name) for name in batch.states.__slots__}
    return found


def check_same(batch: Batch, wanted: Batch, ignored: tuple[str, ...] = ()) -> None:
    here, there = arrays(batch), arrays(wanted)
    assert here.keys() == there.keys()
    for name, array in here.items():
        assert array.dtype == np.int32 and array.flags.c_contiguous, name
        assert name in ignored or np.array_equal(array, there[name]), name


def join(row: int, num_tokens: int) -> Join:
    return Join(f"r{row}", row, SamplingParams(), 0, tuple(range(num_tokens)), num_tokens)


# (tokens before, tokens of this step or None for the one sampled last, how many yield logits, scores its prompt)
PARTS = st.tuples(st.integers(0, 20), st.one_of(st.none(), st.integers(1, 20)), st.integers(0, 3), st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=8), st.randoms(use_true_random=False), st.sampled_from([LIMITS, HYBRID]))
def test_a_batch_equals_that_of_batch_of(
    shapes: list[tuple[int, int | None, int, bool]], chance: object, limits: Limits
) -> None:
    rng = np.random.default_rng(chance.getrandbits(32))  # type: ignore[attr-defined]
    blocks = iter(rng.permutation(LIMITS.num_blocks).tolist())
    order = rng.permutation(LIMITS.max_rows)[: len(shapes)].tolist()
    rows = Rows(limits, 50)
    rows.last_tokens[:] = rng.integers(0, 50, LIMITS.max_rows)
    states = rng.permutation(HYBRID.num_states).tolist()
    parts, slow, changes, tables = [], [], [], []
    for row, (start, count, num_logits, scores) in zip(order, shapes, strict=True):
        tokens = None if count is None else tuple(rng.integers(0, 50, count).tolist())
        length = 1 if tokens is None else len(tokens)
        table = tuple(next(blocks) for _ in range(-(-(start + length) // 4)))
        num_logits = min(num_logits, length)
        scores = scores and tokens is not None
        parts.append(Part(f"r{row}", row, start, tokens, num_logits, table, scores))
        ids = tokens if tokens is not None else (int(rows.last_tokens[row]),)
        windows = [tuple(rng.permutation(100)[: len(table)].tolist()) for _ in limits.windows]
        slow.append(RowPart(ids, start, table, length if scores else num_logits, states[row], windows))
        changes.append(StateChange(row, states[row] if start else -1, states[row]))
        tables += [TableChange(group, row, 0, blocks) for group, blocks in enumerate(windows)]
    copies = (CopyBlock(3, 5, 2), CopyBlock(7, 1, 4))
    plan = StepPlan(1, tuple(parts), tuple(join(row, 5) for row in order), copies=copies, tables=tuple(tables))
    plan = replace(plan, states=tuple(changes)) if limits.num_states else plan
    rows.update(plan)
    batch, wanted = BatchBuilder(limits).build(plan, rows).batch, Batch.of(slow, 4)
    batch.check(LIMITS.num_blocks, 4)
    assert batch.draws is None
    wanted = wanted if limits.num_states else replace(wanted, states=None)
    check_same(batch, wanted, ("copies", "num_top"))
    assert batch.copies.tolist() == [[3, 5, 2], [7, 1, 4]]
    asked: list[int] = []
    for part, row in zip(parts, slow, strict=True):  # scores of a prompt need all logits, tokens only the likeliest
        asked += [0] * (row.num_logits - part.num_logits)
        asked += [rows[part.row].sampler.num_top] * part.num_logits
    assert batch.num_top.tolist() == asked


def test_block_tables_grow_and_are_reset_for_the_next_request_of_a_row() -> None:
    rows = Rows(LIMITS, 50)
    rows.update(StepPlan(1, (Part("a", 0, 0, (1, 2), 1, (9,)),), (join(0, 2),)))
    rows.update(StepPlan(2, (Part("a", 0, 2, None, 1, (8, 7)),)))
    assert rows.block_tables[0, :3].tolist() == [9, 8, 7]
    rows.update(StepPlan(3, (Part("b", 0, 0, (1,), 1, (5,)),), (join(0, 1),), leaves=(0,)))
    assert rows.num_blocks[0] == 1 and rows.block_tables[0, 0] == 5 and len(rows) == 1


def test_a_batch_of_single_tokens_allocates_nothing_large() -> None:
    """Buffers are views of what was made once: a step's arrays lie where the last step's did."""
    rows, builder = Rows(LIMITS, 50), BatchBuilder(LIMITS)
    first = StepPlan(
        1, tuple(Part(f"r{r}", r, 0, (1, 2, 3), 1, (r,)) for r in range(3)), tuple(join(r, 3) for r in range(3))
    )
    rows.update(first)
    prompt = builder.build(first, rows).batch
    places = [getattr(prompt, name).ctypes.data for name in ("token_ids", "slots", "starts", "lengths", "block_tables")]
    after = StepPlan(2, tuple(Part(f"r{r}", r, 3, None, 1, ()) for r in range(3)))
    rows.update(after)
    batch = builder.build(after, rows).batch
    assert [
        getattr(batch, name).ctypes.data for name in ("token_ids", "slots", "starts", "lengths", "block_tables")
    ] == places


def test_groups_keep_only_rows_that_are_in_the_step() -> None:
    """Row 3 has no part, which leaves its partner alone; row 6 has come to the first two blocks only."""
    rows = Rows(LIMITS, 50)
    tables = {5: (9, 8, 7, 1), 6: (9, 8, 7, 2), 0: (9, 8, 7, 3), 2: (4, 11), 4: (4, 12), 1: (20, 21)}
    starts = {5: 12, 6: 5, 0: 13, 2: 4, 4: 5, 1: 6}
    parts = tuple(Part(f"r{r}", r, starts[r], (1,), 1, table) for r, table in tables.items())
    groups = (SharedPrefix((0, 5, 6), 3), SharedPrefix((1, 3), 2), SharedPrefix((2, 3, 4), 1))
    plan = StepPlan(1, parts, tuple(join(row, 3) for row in tables), groups=groups)
    rows.update(plan)
    batch = BatchBuilder(LIMITS).build(plan, rows).batch
    batch.check(LIMITS.num_blocks, LIMITS.block_tokens)
    assert batch.groups.tolist() == [[0, 2, 2], [0, 0, 2], [0, 1, 2], [2, 3, 1], [2, 4, 1]]


@pytest.mark.parametrize("limits", [LIMITS, HYBRID], ids=["one group", "windows and states"])
def test_the_fast_path_of_running_rows_builds_the_same_arrays(limits: Limits) -> None:
    """Also across the end of a block, after a row has left, and after another has joined in its place."""
    rows, builder = Rows(limits, 50), BatchBuilder(limits)
    size = LIMITS.block_tokens
    built_anew = 0

    def built(plan: StepPlan) -> Batch:
        nonlocal built_anew
        tables = [
            TableChange(group, part.row, part.start // size, tuple(block + 30 + group for block in part.new_blocks))
            for part in plan.parts
            for group in range(len(limits.windows))
            if part.new_blocks
        ]
        plan = replace(plan, tables=tuple(tables))
        rows.update(plan)
        rows.last_tokens[:] = plan.number
        built_anew += builder._last_step is None or not builder._continues(builder._last_step, plan)
        batch = builder.build(plan, rows).batch
        check_same(batch, BatchBuilder(limits).build(plan, rows).batch)
        batch.check(LIMITS.num_blocks, size)
        return batch

    first = tuple(Part(f"r{r}", r, 0, (1,) * (r + 1), 1, (2 * r, 2 * r + 1)) for r in range(3))
    states = tuple(StateChange(r, -1, 5 + r) for r in range(3) if limits.num_states)
    built(StepPlan(1, first, tuple(join(r, r + 1) for r in range(3)), states=states))
    for number in range(2, size + 2):
        built(StepPlan(number, tuple(Part(f"r{r}", r, r + number - 1, None, 1, ()) for r in range(3))))
    assert built_anew == 2
    number, alone = size + 2, Part("r0", 0, size + 1, None, 1, ())
    built(StepPlan(number, (alone,), leaves=(1, 2)))
    states = (StateChange(0, 9, 3),) if limits.num_states else ()
    new = Part("new", 0, size + 2, None, 1, (9, 10, 11))
    built(StepPlan(number + 1, (new,), (join(0, 3),), leaves=(0,), states=states))


# ── window groups and states ──


def test_a_row_reads_a_new_source_in_one_step_and_its_own_slot_afterwards() -> None:
    rows, builder = Rows(HYBRID, 50), BatchBuilder(HYBRID)

    def slots(plan: StepPlan) -> tuple[list[int], list[int]]:
        rows.update(plan)
        states = builder.build(plan, rows).batch.states
        assert states is not None
        return states.source.tolist(), states.target.tolist()

    first = (Part("a", 0, 8, (1, 2), 1, (0, 1, 2, 5)), Part("b", 1, 0, (1, 2), 0, (3, 4)))
    changes = (StateChange(0, 7, 2), StateChange(1, -1, 3))
    plan = StepPlan(1, first, (join(0, 10), join(1, 8)), states=changes)
    assert slots(plan) == ([7, -1], [2, 3])
    parts = (Part("a", 0, 10, None, 1, ()), Part("b", 1, 2, (3, 4), 0, ()))
    assert slots(StepPlan(2, parts)) == ([2, 3], [2, 3])
    # A part with a draft writes to another slot; the draft is rejected, so the row goes back to the slot before.
    drafted = (Part("a", 0, 11, (5, 6), 2, ()), Part("b", 1, 4, (3, 4), 0, ()))
    assert slots(StepPlan(3, drafted, states=(StateChange(0, 2, 9),))) == ([2, 3], [9, 3])
    again = (Part("a", 0, 11, (5, 7), 1, ()),)
    assert slots(StepPlan(4, again, states=(StateChange(0, 2, 2),))) == ([2], [2])
    assert slots(StepPlan(5, (Part("a", 0, 13, None, 1, ()),))) == ([2], [2])


def test_saved_states_are_found_by_their_token_in_the_step() -> None:
    rows, builder = Rows(HYBRID, 50), BatchBuilder(HYBRID)
    parts = (Part("a", 3, 8, (1, 2, 3), 1, (0, 1, 2)), Part("b", 1, 0, (1, 2, 3, 4), 0, (3,)))
    saves = (SaveState(1, 4, 10), SaveState(1, 1, 11), SaveState(3, 10, 12), SaveState(6, 4, 13))
    changes = (StateChange(3, 7, 2), StateChange(1, -1, 3))
    plan = StepPlan(1, parts, (join(3, 11), join(1, 9)), states=changes, saves=saves)
    rows.update(plan)
    batch = builder.build(plan, rows).batch
    batch.check(HYBRID.num_blocks, HYBRID.block_tokens)
    assert batch.states is not None
    assert batch.states.saves.tolist() == [[1, 12], [3, 11], [6, 10]], "row 6 has no part: it was removed"


def test_a_window_groups_table_changes_from_a_place_on_and_its_blocks_are_copied() -> None:
    rows, builder = Rows(HYBRID, 50), BatchBuilder(HYBRID)
    part = Part("a", 2, 14, (1, 2, 3, 4), 1, (5, 6, 7, 8, 9))
    tables = (TableChange(0, 2, 2, (40, 41, 42)), TableChange(1, 2, 0, (50, 51, 52, 53, 54)))
    copies = ((CopyBlock(33, 41, 2),), ())
    plan = StepPlan(1, (part,), (join(2, 18),), tables=tables, window_copies=copies, states=(StateChange(2, 1, 0),))
    rows.update(plan)
    near, far = builder.build(plan, rows).batch.windows
    assert near.slots.tolist() == [41 * 4 + 2, 41 * 4 + 3, 42 * 4, 42 * 4 + 1]
    assert near.block_tables[0, 2:].tolist() == [40, 41, 42] and near.copies.tolist() == [[33, 41, 2]]
    assert far.block_tables.tolist() == [[50, 51, 52, 53, 54]] and far.copies.shape == (0, 3)


# ── where the device chooses ──

GREEDY, PLAIN = SamplingParams(temperature=0.0), SamplingParams(seed=4, temperature=0.7, top_k=9, top_p=0.8, min_p=0.1)
WAYS = (GREEDY, PLAIN, SamplingParams(seed=2), SamplingParams(logprobs=1), SamplingParams(presence_penalty=1.0))


def sampling_of_row(row: int) -> SamplingParams:
    return WAYS[row % len(WAYS)]


def build_drawn(plan: StepPlan, rows: Rows, builder: BatchBuilder, masked: tuple[int, ...] = ()) -> tuple[Batch, Draws]:
    rows.update(plan)
    built = builder.build(plan, rows, masked)
    built.mark_launched(rows)
    built.batch.check(LIMITS.num_blocks, LIMITS.block_tokens)
    assert built.batch.draws is not None and not len(built.batch.num_top)
    host_sampled = [i for i, p in enumerate(plan.parts) if (p.num_logits or p.scores_prompt) and not is_on_device(p)]
    assert list(built.host_sampled) == host_sampled
    return built.batch, built.batch.draws


def is_on_device(part: Part) -> bool:
    way = sampling_of_row(part.row)
    return part.num_logits > 0 and not part.scores_prompt and way.logprobs is None and not way.presence_penalty


def test_draws_follow_the_sampling_params_and_the_fast_path_builds_the_same() -> None:
    """Five ways of sampling; three are the device's. Their tokens stay there, and masks are marked where they are."""
    rows, builder = Rows(LIMITS, 50), BatchBuilder(LIMITS, device_samples=True)
    joins = tuple(Join(f"r{r}", r, sampling_of_row(r), 0, (1,) * (r + 1), r + 1) for r in range(5))
    parts = tuple(Part(f"r{r}", r, 0, (1,) * (r + 1), 1, (2 * r, 2 * r + 1)) for r in range(5))
    _, first = build_drawn(StepPlan(1, parts, joins), rows, builder, masked=(1, 3))
    assert first.rows.tolist() == [0, 1, 2, -1, -1]
    assert first.masked.tolist() == [False, True, False, False, False], "the host has the mask of what it chooses"
    assert first.temperature[:3].tolist() == [0.0, np.float32(0.7), 1.0]
    assert (first.top_k[1], first.top_p[1], first.min_p[1]) == (9, np.float32(0.8), np.float32(0.1))
    for number in range(2, 7):
        rows.last_tokens[:] = 30 + number
        parts = tuple(Part(f"r{r}", r, r + number - 1, None, 1, (20 + r,) if number + r == 9 else ()) for r in range(5))
        batch, draws = build_drawn(StepPlan(number, parts), rows, builder)
        assert batch.token_ids.tolist() == [-1, -2, -3, 30 + number, 30 + number]
        anew, again = build_drawn(
            StepPlan(number, tuple(p._replace(new_blocks=()) for p in parts)), rows, new_builder()
        )
        check_same(batch, anew)
        for name in Draws.__slots__:
            assert np.array_equal(getattr(draws, name), getattr(again, name)), (number, name)
        for row in (1, 2):
            chance = uniform(rows[row].sampler.stream, row + number)
            assert draws.chance[row] == np.float32(chance)


def new_builder() -> BatchBuilder:
    return BatchBuilder(LIMITS, device_samples=True)


def test_the_host_has_the_token_after_drafts_and_after_scores() -> None:
    """The device samples after each draft; which of these tokens is the newest one is known with the result."""
    rows, builder = Rows(LIMITS, 50), new_builder()
    joins = tuple(Join(f"r{r}", r, way, 0, (1, 2), 2) for r, way in ((0, PLAIN), (5, GREEDY)))
    parts = (Part("r0", 0, 0, (1, 2, 7), 2, (0,)), Part("r5", 5, 0, (1, 2), 1, (1,), True))
    rows.update(StepPlan(1, parts, joins))
    built = builder.build(StepPlan(1, parts), rows, masked=(0,))
    built.mark_launched(rows)
    batch, draws = built.batch, built.batch.draws
    assert draws is not None and batch.logits_at.tolist() == [1, 2, 3, 4]
    assert draws.rows.tolist() == [0, 0, -1, -1] and draws.masked.tolist() == [True, True, False, False]
    assert draws.chance[:2].tolist() == [np.float32(uniform(rows[0].sampler.stream, at)) for at in (2, 3)]
    rows.last_tokens[[0, 5]] = 8, 9
    streams = (Part("r0", 0, 3, None, 1, ()), Part("r5", 5, 2, None, 1, ()))
    batch, draws = build_drawn(StepPlan(2, streams), rows, builder)
    assert batch.token_ids.tolist() == [8, 9] and draws.rows.tolist() == [0, 5]
    batch, _ = build_drawn(
        StepPlan(3, tuple(p._replace(start=p.start + 1, new_blocks=(9,)) for p in streams)), rows, builder
    )
    assert batch.token_ids.tolist() == [-1, -6]
