"""Kernels of recurrent layers against the references: outputs, and states in every slot that is written.

Rows of a step are computed token by token or in chunks (state_work.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.devices._triton.state_work import CHUNK, MAX_STEPS, StateRows, StateSizes, cut_rows
from quire.ops.batch import Batch, StateSlots
from quire.ops.registry import relative_error
from tests.devices._triton.recurrent import arguments, computed, expected, op_of, step_of
from tests.devices.interpreted import in_interpreter

pytestmark = pytest.mark.device

FUSED = ["activated_short_conv", "gated_delta_rule", "gated_delta_channel"]
NAMES = ["short_conv", "delta_rule", "delta_channel", "state_scan", "mamba"]
EACH = pytest.mark.parametrize("name", NAMES)
DECODE = [(5, 1), (64, 1), (0, 1), (130, 1)]
# Lengths around a chunk, from positions that are no multiples of it, with rows of few tokens between them. Saved: ends
# of chunks, the last token of a row of one token, and a token inside a chunk.
MIXED, MIXED_SAVES = [(0, 130), (63, 1), (1, 2), (37, 65), (0, 64), (70, 63)], [63, 127, 130, 150]
SPARE = 99


def assert_matches(name: str, batch: Batch, place: str, dtype: str = "f32", has_chunks: bool = True) -> None:
    batch._check_states()
    op, args = op_of(name), arguments(name, batch, dtype)
    for found, right in zip(computed(op, args, place, dtype, has_chunks), expected(op, args), strict=True):
        assert relative_error(found, right) <= op.tolerance[dtype]


@pytest.mark.parametrize("name", [*NAMES, *FUSED])
@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
def test_decoding_matches_the_reference(name: str, dtype: str, place: str):
    assert_matches(name, step_of(DECODE, [1]), place, dtype)


@EACH
def test_prompts_and_decoding_in_one_step_match_the_reference(name: str, place: str):
    assert_matches(name, step_of(MIXED, MIXED_SAVES), place)


@pytest.mark.parametrize("name", FUSED)
def test_a_prompt_beside_a_decoding_row_matches_the_reference_of_a_fused_op(name: str, place: str):
    assert_matches(name, step_of([(0, MAX_STEPS + 1), (3, 1)]), place)


@EACH
def test_a_prompt_in_bfloat16_matches_the_reference(name: str, place: str):
    assert_matches(name, step_of([(37, 65)], [30]), place, "bf16")


@EACH
@pytest.mark.parametrize("rows", [[(0, MAX_STEPS + 5)], [(3, 2), (7, MAX_STEPS + 2)]])
def test_rows_token_by_token_match_the_reference(name: str, rows: list[tuple[int, int]], place: str):
    assert_matches(name, step_of(rows, [4]), place, has_chunks=False)


@EACH
def test_a_state_has_the_same_bits_however_its_tokens_were_divided(name: str, place: str):
    """Token by token, as in deterministic mode: a step of all tokens, and three steps."""
    op, count = op_of(name), MAX_STEPS + 3
    args = arguments(name, step_of([(5, count)]))
    out, states = computed(op, args, place, has_chunks=False)
    pieces = []
    for start, end in ((0, 1), (1, 9), (9, count)):
        part = {key: args[key][start:end] for key in op.inputs} | {"batch": step_of([(5 + start, end - start)])}
        found, slots = computed(op, args | part, place, has_chunks=False)
        args["cache"] = replace(args["cache"], slots=slots)
        pieces.append(found)
    assert np.array_equal(np.concatenate(pieces), out)
    assert np.array_equal(args["cache"].slots, states)


@EACH
def test_a_row_does_not_depend_on_others(name: str, place: str):
    """With one token: in a step of its own, and beside a prompt and another row."""
    op, batch = op_of(name), step_of([(0, MAX_STEPS + 1), (9, 1), (3, 1)])
    args = arguments(name, batch)
    out, states = computed(op, args, place)
    token = {key: args[key][-2:-1] for key in op.inputs}
    slots = StateSlots(np.array([1], np.int32), batch.states.target[1:2])  # type: ignore[union-attr]
    alone, after = computed(op, args | token | {"batch": replace(step_of([(9, 1)]), states=slots)}, place)
    assert np.array_equal(alone[0], out[-2])
    assert np.array_equal(after[4], states[4])


@pytest.mark.parametrize("rows, saved", [(MIXED, MIXED_SAVES), ([(60, 200)], [10, 67]), (DECODE, [])])
def test_chunks_divide_long_rows_at_multiples_and_after_saved_tokens(rows: list[tuple[int, int]], saved: list[int]):
    batch = step_of(rows, saved)
    chunks, scans = cut_rows(batch)
    long = [row for row, (_, new) in enumerate(rows) if new > MAX_STEPS]
    assert scans[:, 0].tolist() == long
    for row, first, end in scans.tolist():
        mine = chunks[first:end]
        assert mine[0, 0] == batch.starts[row] and mine[-1, 1] == batch.starts[row + 1]
        assert (mine[1:, 0] == mine[:-1, 1]).all()
        assert (np.diff(mine) > 0).all() and (np.diff(mine) <= CHUNK).all()
        cuts = set(mine[:-1, 1].tolist())
        inside = range(batch.starts[row] + 1, batch.starts[row + 1])
        assert cuts == {at for at in inside if batch.positions[at] % CHUNK == 0 or at - 1 in saved}
    assert len(cut_rows(batch, has_chunks=False).scans) == 0


def test_rows_of_padding_begin_with_zeros_and_write_to_the_spare_slot():
    batch, sizes = step_of(DECODE, [2]), StateSizes(7, 7, 0, 0)
    rows, used = StateRows.of(np.full(100, 55, np.int32), sizes)
    rows.fill(batch, cut_rows(batch), SPARE)
    assert batch.states is not None
    assert rows.source.tolist() == [*batch.states.source, -1, -1, -1]
    assert rows.target.tolist() == [*batch.states.target, SPARE, SPARE, SPARE]
    assert rows.starts.tolist() == list(range(8)) and rows.row_of_token.tolist() == list(range(7))
    assert rows.saves.tolist() == [-1, -1, 8, -1, -1, -1, -1]
    assert used <= 100 and len(rows.chunks) == len(rows.scans) == 0


@pytest.mark.parametrize("num_tokens, num_rows, starts, last", [
    (9, 8, [0, 3, 4, 6, 7, 8, 9, 9, 9], 5),  # more rows of padding than tokens: the last ones are empty
    (9, 5, [0, 3, 4, 6, 7, 9], 4),  # more tokens: the last row has the rest
    (9, 4, [0, 3, 4, 6, 9], 3),
    (6, 4, [0, 3, 4, 6, 6], 2),  # no token of padding
    (6, 3, [0, 3, 4, 6], 2),
])  # fmt: skip
def test_tokens_of_padding_after_drafts_are_in_rows_of_padding(num_tokens, num_rows, starts, last):
    batch, sizes = step_of([(3, 3), (5, 1), (9, 2)]), StateSizes(num_tokens, num_rows, 0, 0)
    rows, _ = StateRows.of(np.full(200, 55, np.int32), sizes)
    rows.fill(batch, cut_rows(batch), SPARE)
    assert rows.starts.tolist() == starts
    assert rows.row_of_token[:6].tolist() == [0, 0, 0, 1, 2, 2] and rows.row_of_token[-1] == last
    assert all(starts[row] <= at < starts[row + 1] for at, row in enumerate(rows.row_of_token.tolist()))
    assert set(rows.target[3:].tolist()) <= {SPARE}


@pytest.mark.parametrize("num_tokens, num_rows", [(5, 5), (5, 9), (9, 5)])
def test_a_step_of_padding_alone_writes_to_the_spare_slot(num_tokens: int, num_rows: int):
    rows, _ = StateRows.of(torch.full((200,), 55, dtype=torch.int32), StateSizes(num_tokens, num_rows, 0, 0))
    rows.fill_padding(SPARE)
    starts = rows.starts.tolist()
    assert starts == sorted(starts) and starts[0] == 0 and starts[-1] == num_tokens
    assert all(starts[row] <= at < starts[row + 1] for at, row in enumerate(rows.row_of_token.tolist()))
    assert set(rows.target.tolist()) == {SPARE} and set(rows.source.tolist()) == {-1}
