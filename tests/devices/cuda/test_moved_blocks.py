"""KV blocks and states of the device as bytes: bit-equal after a move, in order with steps in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices.base import Limits, MovesBlocks, WindowLimits
from quire.devices.cuda.moved_blocks import BUFFER_BYTES, NUM_WRITES
from quire.devices.cuda.program import CudaProgram
from tests.devices.cuda.models import LIMITS, Texts, lowered, small
from tests.models.toys import make_toy, some_tokens

pytestmark = pytest.mark.device

FEW = Limits(max_tokens=64, max_rows=4, max_logits=8, max_blocks=8, num_blocks=24, block_tokens=16, num_states=4)


def program_of(name: str, place: str, limits: Limits = FEW, **wishes: Any) -> CudaProgram:
    model = (small(name) if name in ("llama", "qwen2-windows") else make_toy(name)).draw()
    program = lowered(model, place, limits, deterministic=True, **wishes)
    assert isinstance(program, MovesBlocks)
    return program


def some_bytes(rows: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (rows, count), np.uint8)


@pytest.mark.parametrize("format", ["bf16", "f32", "f8_e4m3"])
@pytest.mark.parametrize("name", ["llama", "deepseek_v2"])
def test_blocks_are_read_as_they_were_written_and_others_stay(name, format, place):
    program = program_of(name, place, kv_dtype=format)
    data = some_bytes(3, program.block_bytes(0))
    program.write_blocks(0, np.array([5, 0, 2], np.int32), data)
    assert np.array_equal(program.read_blocks(0, np.array([2, 5, 0], np.int32)), data[[2, 0, 1]])
    assert not program.read_blocks(0, np.array([1, 23], np.int32)).any()
    assert program.block_bytes(0) * (program.num_blocks + 1) == program.caches.num_bytes


def test_the_bytes_are_those_of_the_tensors(place):
    """The first half of a block are K, then V, of each layer in turn."""
    program = program_of("llama", place)
    (tensor,) = program.caches.tensors_of(0)
    tensor[1, 0, 7] = 3.0
    (data,) = program.read_blocks(0, np.array([7], np.int32))
    numbers = torch.from_numpy(data).view(tensor.dtype).view(2, 2, -1)
    assert (numbers[1, 0] == 3).all() and not numbers[0].any() and not numbers[1, 1].any()


def test_window_groups_and_states_have_bytes_of_their_own(place):
    windowed = program_of("qwen2-windows", place, replace(FEW, windows=(WindowLimits(7, 6),)))
    data = some_bytes(1, windowed.block_bytes(1))
    windowed.write_blocks(1, np.array([3], np.int32), data)
    assert np.array_equal(windowed.read_blocks(1, np.array([3], np.int32)), data)
    assert not windowed.read_blocks(0, np.array([3], np.int32)).any() and windowed.state_bytes == 0
    recurrent = program_of("lfm2", place)
    state = some_bytes(1, recurrent.state_bytes)[0]
    recurrent.write_state(2, state)
    assert np.array_equal(recurrent.read_state(2), state) and not recurrent.read_state(1).any()


def test_more_blocks_than_a_buffer_holds_are_moved_in_parts(place, monkeypatch):
    monkeypatch.setattr("quire.devices.cuda.moved_blocks.BUFFER_BYTES", 1)  # then one block
    program = program_of("llama", place)
    places = np.random.default_rng(0).permutation(24).astype(np.int32)[: 3 * NUM_WRITES]
    data = some_bytes(len(places), program.block_bytes(0))
    program.write_blocks(0, places, data)
    assert len(program.block_copies._reads.device) == program.block_bytes(0) < BUFFER_BYTES
    assert np.array_equal(program.read_blocks(0, places), data)


def test_what_is_outside_or_of_another_size_is_refused(place):
    program = program_of("llama", place)
    size = program.block_bytes(0)
    for group, block, data in (
        (0, 24, some_bytes(1, size)),  # the block for padding
        (0, -1, some_bytes(1, size)),
        (1, 0, some_bytes(1, size)),
        (0, 0, some_bytes(1, size + 1)),
        (0, 0, some_bytes(2, size)),
        (0, 0, some_bytes(1, size).astype(np.int32)),
    ):
        with pytest.raises(ValueError):
            program.write_blocks(group, np.array([block], np.int32), data)
    recurrent = program_of("lfm2", place)
    for slot in (-1, 4):
        with pytest.raises(ValueError):
            recurrent.read_state(slot)
    with pytest.raises(ValueError):
        recurrent.write_state(0, np.zeros(recurrent.state_bytes + 1, np.uint8))


def moved_text(program: CudaProgram, other: CudaProgram) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of a token behind a prompt: computed alone, and behind blocks of another program."""
    prompt, texts, later = some_tokens(48), Texts(program), Texts(other)
    texts.step({0: prompt})
    later.lengths[1] = 48
    read = program.read_blocks(0, np.array(texts.blocks(0)[:3], np.int32))
    in_flight = other.launch(later.batch({0: some_tokens(20)}))
    other.write_blocks(0, np.array(later.blocks(1)[:3], np.int32), read)
    read[:] = 255  # it may change as soon as the call returns
    answer = later.step({1: [9]})
    in_flight.result()
    return texts.step({0: [9]}), answer


@pytest.mark.parametrize("format", ["bf16", "f8_e4m3"])
def test_a_step_behind_blocks_of_another_program_has_the_bits_of_one_program(format, place):
    ends = [program_of("llama", place, LIMITS, kv_dtype=format) for _ in range(2)]
    alone, moved = moved_text(*ends)
    assert np.array_equal(alone, moved)


class Recorder:
    """Streams and events that do nothing but record in which order they are used."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.current = "none"

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def made(self, name: str) -> Any:
        """Return a stream or an event."""

        def note(what: str) -> Any:
            return lambda *other: self.log.append(" ".join([self.current, what, name, *(each.name for each in other)]))

        verbs = {verb: note(verb) for verb in ("record", "synchronize", "wait_event")}
        return SimpleNamespace(name=name, **verbs)


def test_reads_wait_for_writes_alone_and_steps_wait_for_the_bytes_of_writes(monkeypatch):
    """The order that a GPU would be given, on any machine."""
    copies, recorder = program_of("llama", "cpu").block_copies, Recorder()
    monkeypatch.setattr(torch.cuda, "stream", recorder.stream)
    copies.stream, copies._beside = recorder.made("steps"), recorder.made("beside")
    copies._reads.moved = recorder.made("read")
    for number, each in enumerate(copies._writes):
        each.moved, each.used = recorder.made(f"sent{number}"), recorder.made(f"used{number}")
    place, data = np.array([3], np.int32), some_bytes(1, copies.block_bytes(0))
    copies.write(0, place, data)
    assert recorder.log == [
        "none synchronize used0",  # the buffer is free: nothing else is waited for by the host
        "beside record sent0",
        "steps wait_event steps sent0",
        "steps record used0",
    ]
    recorder.log.clear()
    assert np.array_equal(copies.read(0, place), data)
    assert recorder.log == [
        *(f"beside wait_event beside used{number}" for number in range(NUM_WRITES)),
        "beside record read",
        "beside synchronize read",
    ]


@pytest.mark.gpu
def test_blocks_are_read_while_a_later_step_is_in_flight_and_keep_their_order(place):
    """Written behind a step that reads the old bytes, and before one that reads the new; read without waiting."""
    program = program_of("llama", place, LIMITS)
    texts = Texts(program, num_blocks=8)
    texts.step({0: some_tokens(64)})
    places = np.array(texts.blocks(0)[:4], np.int32)
    expected = program.read_blocks(0, places)
    for number in range(20):
        flights = [program.launch(texts.batch({1 + number % 3: some_tokens(8)})) for _ in range(2)]
        assert np.array_equal(program.read_blocks(0, places), expected)
        program.write_blocks(0, places, expected)
        for flight in flights:
            flight.result()
        texts.lengths.clear()
        texts.lengths[0] = 64
    assert np.array_equal(program.read_blocks(0, places), expected)


@pytest.mark.gpu
def test_buffers_on_the_host_are_pinned_and_no_call_waits_for_the_whole_device(place):
    program = program_of("llama", place)
    copies = program.block_copies
    assert all(each.host.is_pinned() and each.numbers.is_pinned() for each in (copies._reads, *copies._writes))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1 << 32)  # cycles, on a stream that has nothing to do with blocks
    data = some_bytes(1, program.block_bytes(0))
    program.write_blocks(0, np.array([1], np.int32), data)
    assert np.array_equal(program.read_blocks(0, np.array([1], np.int32)), data) and not side.query()
    side.synchronize()


def test_formats_and_kinds_of_kernels_are_part_of_the_layout(place):
    plain = program_of("llama", place).block_layout
    others = [
        program_of("llama", place, kv_dtype="f8_e4m3"),
        program_of("llama", place, dtype="f32"),
        program_of("llama", place, fuse=False),
        program_of("llama", place, quantize="fp8"),
        program_of("llama", place, replace(FEW, block_tokens=32)),
    ]
    layouts = {plain, *(each.block_layout for each in others)}
    assert len(layouts) == 1 + len(others) and all(each.startswith("cuda ") for each in layouts)
    assert program_of("llama", place).block_layout == plain
