"""Copies KV blocks and states between the GPU and bytes on the host, for transfers to and from other engines.

Reads do not wait for a step in flight, and writes do not make the host wait for one:

    read     The results of the step that wrote a block have been collected, so that step is over, and no step in flight
             writes the block, because it is in the prefix tree. A copy stream, separate from that of the steps, gathers
             it and copies it to pinned memory, after earlier writes of received blocks; the host waits only for that.
    write    Bytes go from pinned memory to the device on the copy stream. The stream of the steps waits for them and
             moves them into their blocks: after the steps in flight, which may read the blocks' old contents, and
             before the next step, which may read the new ones.

Buffers are allocated once and bounded. The host waits for a step only if it writes more bytes than they hold.

The bytes of a block are those of each tensor of its group in turn: all layers' K, then V, or latents, as they are
stored. FP8 caches have no scales: they store K and V as they are, rounded.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.ops.cache import Cross

from .caches import Caches

Array = NDArray[Any]
BUFFER_BYTES = 8 << 20  # of one buffer, unless one block is larger
NUM_WRITES = 4  # buffers for blocks in flight to the device
MAX_BLOCKS = 4096  # of one copy, which also sends their numbers


@dataclass(slots=True, eq=False)
class CopyBuffer:
    """Pinned host memory, and as much device memory, for the bytes of some blocks in flight."""

    host: Tensor  # uint8
    device: Tensor
    numbers: Tensor  # int64, pinned: block numbers
    places: Tensor  # the same on the device
    moved: Any  # torch.cuda.Event: the copy between host and device is done; None on a CPU
    used: Any  # torch.cuda.Event: the buffer may be reused; None on a CPU

    @classmethod
    def make(cls, num_bytes: int, state_bytes: int, device: torch.device) -> CopyBuffer:
        is_cuda = device.type == "cuda"
        host = torch.zeros(max(num_bytes, state_bytes), dtype=torch.uint8, pin_memory=is_cuda)
        numbers = torch.zeros(MAX_BLOCKS, dtype=torch.int64, pin_memory=is_cuda)
        events = (torch.cuda.Event() if is_cuda else None for _ in range(2))
        on_device = (torch.zeros_like(each, device=device) for each in (host[:num_bytes], numbers))
        return cls(host, next(on_device), numbers, next(on_device), *events)


@dataclass(slots=True, eq=False)
class BlockCopies:
    """Copies blocks and states of a program's caches."""

    caches: Caches
    device: torch.device
    stream: Any  # of the steps; None on a CPU
    _beside: Any = None
    _planes: list[list[Tensor]] = field(init=False)  # of each group: [blocks, parts, words]
    _reads: CopyBuffer = field(init=False)
    _writes: list[CopyBuffer] = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        groups = range(1 + len(self.caches.windows))
        self._planes = [[_rows_of(each) for each in self.caches.tensors_of(group)] for group in groups]
        largest = max(BUFFER_BYTES, *map(self.block_bytes, groups))
        sizes = largest, self.state_bytes, self.device
        self._reads = CopyBuffer.make(*sizes)
        self._writes = [CopyBuffer.make(*sizes) for _ in range(NUM_WRITES)]
        if self.stream is not None:
            self._beside = torch.cuda.Stream(self.device)
            torch.cuda.synchronize(self.device)  # once: the buffers were filled on another stream

    def block_bytes(self, group: int) -> int:
        """Bytes of a block, over the layers of a group."""
        if not 0 <= group < len(self._planes):
            raise ValueError(f"there is no group {group}: the model has {len(self._planes)}")
        return sum(_row_bytes(each) for each in self._planes[group])

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, over the recurrent layers."""
        return sum(_row_bytes(each) for each in self.caches.states)

    def read(self, group: int, blocks: Array) -> Array:
        """Return a copy of the bytes of blocks, which steps with collected results have written."""
        self._check(group, blocks)
        size, buffer = self.block_bytes(group), self._reads
        data = np.empty((len(blocks), size), np.uint8)
        most = _most_blocks(size, buffer)
        for first in range(0, len(blocks), most):
            part = blocks[first : first + most]
            count = len(part)
            with self._on_side():
                self._await_writes()
                at = _send_numbers(buffer, part)
                for plane, start in _offsets(self._planes[group], count):
                    torch.index_select(plane, 0, at, out=_view(buffer.device, plane, count, start))
                buffer.host[: count * size].copy_(buffer.device[: count * size], non_blocking=True)
                self._finish(buffer)
            host, column = buffer.host.numpy(), 0
            for plane, start in _offsets(self._planes[group], count):
                width = _row_bytes(plane)
                rows = host[start : start + count * width].reshape(count, width)
                data[first : first + count, column : column + width] = rows
                column += width
        return data

    def write(self, group: int, blocks: Array, data: Array) -> None:
        """Overwrite the bytes of blocks before the next step, after those in flight."""
        self._check(group, blocks)
        size = self.block_bytes(group)
        if data.shape != (len(blocks), size) or data.dtype != np.uint8:
            raise ValueError(f"{len(blocks)} blocks need {size} bytes each; the data is {data.dtype} {data.shape}")
        most = _most_blocks(size, self._writes[0])
        for first in range(0, len(blocks), most):
            self._write(group, blocks[first : first + most], data[first : first + most])

    def _write(self, group: int, blocks: Array, data: Array) -> None:
        buffer, count = self._take_buffer(), len(blocks)
        host, column = buffer.host.numpy(), 0
        for plane, start in _offsets(self._planes[group], count):
            width = _row_bytes(plane)
            rows = host[start : start + count * width].reshape(count, width)
            rows[:] = data[:, column : column + width]
            column += width
        with self._on_side():
            at = _send_numbers(buffer, blocks)
            buffer.device[: data.size].copy_(buffer.host[: data.size], non_blocking=True)
            if buffer.moved is not None:
                buffer.moved.record()
        with self._on_steps():
            if buffer.moved is not None:
                self.stream.wait_event(buffer.moved)
            for plane, start in _offsets(self._planes[group], count):
                plane.index_copy_(0, at, _view(buffer.device, plane, count, start))
            if buffer.used is not None:
                buffer.used.record()

    def read_state(self, slot: int) -> Array:
        """Return a copy of the bytes of a state, which a step with collected results has written."""
        self._check_slot(slot)
        buffer, at = self._reads, 0
        with self._on_side():
            self._await_writes()
            for states in self.caches.states:
                size = _row_bytes(states)
                buffer.host[at : at + size].copy_(_bytes_of(states[slot]), non_blocking=True)
                at += size
            self._finish(buffer)
        return buffer.host[:at].numpy().copy()

    def write_state(self, slot: int, data: Array) -> None:
        """Overwrite a state before the next step, after those in flight."""
        self._check_slot(slot)
        if data.size != self.state_bytes or data.dtype != np.uint8:
            raise ValueError(f"a state needs {self.state_bytes} bytes; the data is {data.dtype} {data.shape}")
        buffer, at = self._take_buffer(), 0
        buffer.host[: data.size].numpy()[:] = data.reshape(-1)
        with self._on_steps():
            for states in self.caches.states:
                size = _row_bytes(states)
                _bytes_of(states[slot]).copy_(buffer.host[at : at + size], non_blocking=True)
                at += size
            if buffer.used is not None:
                buffer.used.record()

    def _on_side(self) -> Any:
        """Return the context of the copy stream, which does not wait for steps in flight."""
        return nullcontext() if self._beside is None else torch.cuda.stream(self._beside)

    def _on_steps(self) -> Any:
        """Return the context of the steps' stream: work there runs between the steps in flight and the next one."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _await_writes(self) -> None:
        """Make the copy stream wait for received blocks that are being written: they may be read right away."""
        if self._beside is not None:
            for each in self._writes:
                self._beside.wait_event(each.used)

    def _finish(self, buffer: CopyBuffer) -> None:
        """Wait until the bytes are in the host's memory."""
        if buffer.moved is not None:
            buffer.moved.record()
            buffer.moved.synchronize()

    def _take_buffer(self) -> CopyBuffer:
        """Return the next buffer for a write, after its last use."""
        buffer = self._writes[self._next]
        self._next = (self._next + 1) % len(self._writes)
        if buffer.used is not None:
            buffer.used.synchronize()  # returns at once if it was never recorded
        return buffer

    def _check(self, group: int, blocks: Array) -> None:
        self.block_bytes(group)
        count = self.caches.num_blocks if group == 0 else self.caches.windows[group - 1].num_blocks
        if len(blocks) and not (int(blocks.min()) >= 0 and int(blocks.max()) < count):
            raise ValueError(f"group {group} has blocks 0 to {count - 1}; the call names {blocks.tolist()}")

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.caches.num_states:
            raise ValueError(f"there is no state {slot}: the program has {self.caches.num_states}")


class MovesCudaBlocks:
    """The part of a program that copies its blocks to and from the host."""

    __slots__ = ("_copies",)
    caches: Caches
    device: torch.device
    layout: str  # what the bytes of blocks depend on
    _stream: Any
    _copies: BlockCopies | None

    @property
    def block_layout(self) -> str:
        """Return what the bytes of blocks depend on. Empty if layers read sources, whose blocks have another owner."""
        return "" if any(isinstance(each, Cross) for each in self.caches.specs) else self.layout

    @property
    def has_own_memory(self) -> bool:
        """Return whether its blocks are in GPU memory."""
        return self.device.type == "cuda"

    @property
    def block_copies(self) -> BlockCopies:
        """Return the object that copies blocks. It is allocated on first use: most programs copy none."""
        if self._copies is None:
            self._copies = BlockCopies(self.caches, self.device, self._stream)
        return self._copies

    def block_bytes(self, group: int) -> int:
        """Bytes of a block, over the layers of a group."""
        return self.block_copies.block_bytes(group)

    def read_blocks(self, group: int, blocks: Array) -> Array:
        """Return a copy of the bytes of blocks."""
        with torch.no_grad():
            return self.block_copies.read(group, blocks)

    def write_blocks(self, group: int, blocks: Array, data: Array) -> None:
        """Overwrite the bytes of blocks."""
        with torch.no_grad():
            self.block_copies.write(group, blocks, data)

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, over the recurrent layers."""
        return self.block_copies.state_bytes

    def read_state(self, slot: int) -> Array:
        """Return a copy of the bytes of a state."""
        with torch.no_grad():
            return self.block_copies.read_state(slot)

    def write_state(self, slot: int, data: Array) -> None:
        """Overwrite the bytes of a state."""
        with torch.no_grad():
            self.block_copies.write_state(slot, data)


def _send_numbers(buffer: CopyBuffer, blocks: Array) -> Tensor:
    """Send the numbers of blocks to the device."""
    buffer.numbers[: len(blocks)].numpy()[:] = blocks
    buffer.places[: len(blocks)].copy_(buffer.numbers[: len(blocks)], non_blocking=True)
    return buffer.places[: len(blocks)]


def _rows_of(tensor: Tensor) -> Tensor:
    """Return a view of [..., blocks, kv_heads, block_tokens, dim] as [blocks, parts, words]."""
    flat = tensor.flatten(-3)
    flat = flat.flatten(0, -3).view(torch.uint8)
    if flat.shape[-1] % 8 == 0:
        flat = flat.view(torch.int64)  # eight bytes in one copy of a thread
    return flat.transpose(0, 1)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _row_bytes(tensor: Tensor) -> int:
    return prod(tensor.shape[1:]) * tensor.element_size()


def _most_blocks(size: int, buffer: CopyBuffer) -> int:
    """Return how many blocks of `size` bytes fit into a buffer."""
    return max(1, min(MAX_BLOCKS, len(buffer.device) // max(size, 1)))


def _offsets(planes: list[Tensor], count: int) -> list[tuple[Tensor, int]]:
    """Return where the rows of each plane begin in a buffer of `count` blocks."""
    starts, at = [], 0
    for plane in planes:
        starts.append((plane, at))
        at += count * _row_bytes(plane)
    return starts


def _view(buffer: Tensor, plane: Tensor, count: int, start: int) -> Tensor:
    """Return the rows of a plane in a buffer: [count, parts, words]."""
    part = buffer[start : start + count * _row_bytes(plane)]
    return part.view(plane.dtype).view(count, *plane.shape[1:])
