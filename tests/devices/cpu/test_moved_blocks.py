"""KV blocks and states as bytes: written to other places they read the same, and a wrong size or place is refused."""

from __future__ import annotations

import numpy as np
import pytest

from quire.devices.base import Limits, MovesBlocks, WindowLimits, open
from quire.devices.cpu.program import ReferenceProgram
from tests.devices.cpu.programs import HAS_NATIVE
from tests.models.toys import make_toy

pytestmark = pytest.mark.device

LIMITS = Limits(max_tokens=32, max_rows=2, max_logits=2, max_blocks=8, num_blocks=8, kv_dtype="f16", num_states=4)
KINDS = ["references", pytest.param("native", marks=pytest.mark.skipif(not HAS_NATIVE, reason="not built"))]


def program_of(kind: str, case: str, limits: Limits = LIMITS) -> MovesBlocks:
    model = make_toy(case).draw()
    made = ReferenceProgram(model.graph, model.weights, limits) if kind == "references" else None
    program = made or open("cpu").lower(model.graph, model.weights, limits)
    assert isinstance(program, MovesBlocks)
    return program


def some_bytes(rows: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (rows, count), np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_read_as_they_were_written_and_others_stay(kind):
    program = program_of(kind, "llama")
    data = some_bytes(3, program.block_bytes(0))
    program.write_blocks(0, np.array([5, 0, 2], np.int32), data)
    assert np.array_equal(program.read_blocks(0, np.array([2, 5, 0], np.int32)), data[[2, 0, 1]])
    assert not program.read_blocks(0, np.array([1, 7], np.int32)).any()
    assert program.state_bytes == 0 and program.block_layout


@pytest.mark.parametrize("kind", KINDS)
def test_window_groups_and_states_have_bytes_of_their_own(kind):
    windowed = program_of(kind, "gemma3", Limits(32, 2, 2, 8, 8, windows=(WindowLimits(window_of("gemma3"), 6),)))
    data = some_bytes(1, windowed.block_bytes(1))
    assert data.size and windowed.block_bytes(0)
    windowed.write_blocks(1, np.array([3], np.int32), data)
    assert np.array_equal(windowed.read_blocks(1, np.array([3], np.int32)), data)
    assert not windowed.read_blocks(0, np.array([3], np.int32)).any()
    recurrent = program_of(kind, "lfm2")
    state = some_bytes(1, recurrent.state_bytes)[0]
    recurrent.write_state(2, state)
    assert np.array_equal(recurrent.read_state(2), state) and not np.array_equal(recurrent.read_state(1), state)


def window_of(case: str) -> int:
    return next(each.window for each in make_toy(case).draw().graph.caches if getattr(each, "window", None))


@pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")
def test_what_is_outside_or_of_another_size_is_refused():
    program = program_of("native", "llama")
    size = program.block_bytes(0)
    for group, block, data in (
        (0, 8, some_bytes(1, size)),
        (0, -1, some_bytes(1, size)),
        (1, 0, some_bytes(1, size)),
        (0, 0, some_bytes(1, size + 1)),
        (0, 0, some_bytes(2, size)),
    ):
        with pytest.raises(ValueError):
            program.write_blocks(group, np.array([block], np.int32), data)
    with pytest.raises(ValueError):
        program_of("native", "lfm2").read_state(4)
