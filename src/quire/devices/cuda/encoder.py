"""An encoder on a GPU: a step is whole texts, and nothing outlives it. Its output is one vector of each, or, of the
encoder of an encoder-decoder, a row of each token."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.attention_work import aligned
from quire.devices._triton.embed import embed_positions
from quire.devices._triton.pool import pool_tokens
from quire.devices._triton.rope import TokenPlacement
from quire.devices.base import Limits, StepOutput
from quire.graph.graph import Value
from quire.ops.batch import Batch
from quire.types.errors import OutOfDeviceMemory

from . import FACTS
from .capture import CAPTURED_AT, record
from .extra_rows import RowBuffers
from .instructions import Instruction, Run
from .out_of_memory import convert_out_of_memory

logger = logging.getLogger("quire.devices.cuda")
CAPTURED_TOKENS = 2048  # beyond, kernels take longer than their launches
BUCKETS = (*range(16, 128, 16), *range(128, 512, 64), *range(512, CAPTURED_TOKENS + 1, 128))  # tokens
ONE_TOKEN = (0, 1, 0)  # a pool


@dataclass(frozen=True, slots=True, eq=False)
class EmbedTypes:
    """Learned vectors of the types of tokens."""

    table: Tensor
    out: int

    def __call__(self, run: Run) -> None:
        assert run.token_types is not None
        run.values[self.out] = embed_positions(run.token_types, self.table, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One vector of each of the step's pools."""

    value: int
    out: int
    dtype: torch.dtype | None  # None: that of the value

    def __call__(self, run: Run) -> None:
        x = run.whole(self.value)
        assert run.pools is not None
        run.values[self.out] = pool_tokens(x, run.pools, run.where.positions, self.dtype or x.dtype)


class EncoderInputs(NamedTuple):
    """Views of the numbers that a step is sent as: int32, numpy arrays on the host or tensors on the device."""

    ids: Any  # [T]
    positions: Any  # [T]
    types: Any  # [T]
    logits_at: Any  # [L]
    pools: Any  # [P, 3]

    @classmethod
    def of(cls, buffer: Any, tokens: int, logits: int, pools: int) -> EncoderInputs:
        """Divide a buffer of at least `size` numbers."""
        views: list[Any] = []
        at = 0
        for count in (tokens, tokens, tokens, logits, 3 * pools):
            views.append(buffer[at : at + count])
            at += aligned(count)
        return cls._make([*views[:4], views[4].reshape(pools, 3)])

    @staticmethod
    def size(tokens: int, logits: int, pools: int) -> int:
        """Return how many numbers these are."""
        return 3 * aligned(tokens) + aligned(logits) + aligned(3 * pools)

    def fill(self, batch: Batch, is_padded: bool = False) -> None:
        """Write a step. Tokens of padding are rows of their own, and pools of padding are of the first token."""
        arrays = (batch.token_ids, batch.positions, batch.token_types, batch.logits_at, batch.pools)
        for view, array in zip(self, arrays, strict=True):
            view[: len(array)] = array
            view[len(array) :] = 0
        if is_padded:
            self.pools[len(batch.pools) :] = ONE_TOKEN


class CapturedSteps(NamedTuple):
    """The graph of a number of tokens."""

    graph: Any
    out: Tensor  # overwritten by the next replay


@dataclass(slots=True, eq=False)
class PendingVectors:
    """A launched step."""

    host: Tensor  # float32: the output, which is being copied
    is_pooled: bool  # False: rows of tokens, where others have logits
    events: Any  # of its begin and its end; None: it has ended
    _output: StepOutput | None = None

    def result(self) -> StepOutput:
        """Wait for the step."""
        if self._output is None:
            seconds = None
            if self.events is not None:
                began, done = self.events
                done.synchronize()
                seconds = float(began.elapsed_time(done)) / 1e3
            found = self.host.numpy()
            vectors, logits = (found, None) if self.is_pooled else (None, found)
            self._output = StepOutput(logits, pooled=vectors, seconds=seconds)
        return self._output


@dataclass(slots=True, eq=False)
class CudaEncoder:
    """The instructions of one model, or of the encoder of an encoder-decoder. Steps of few tokens are replayed from the
    graph of their number of tokens, rounded up; all others are launched kernel by kernel."""

    instructions: list[Instruction]
    output: Value  # the vectors or scores, or the rows of tokens
    device: torch.device
    rows: RowBuffers
    limits: Limits
    captures: bool = False
    max_in_flight: int = FACTS.steps_in_flight
    num_blocks: int = 0  # nothing is stored
    _buckets: tuple[int, ...] = ()
    _captured: dict[int, CapturedSteps | None] = field(default_factory=dict)  # None: there was no memory for it
    _uses: Counter[int] = field(default_factory=Counter)
    _numbers: Tensor = field(init=False)  # int32: the inputs of captured steps
    _stream: Any = None  # on which steps are captured
    _memory: Any = None  # of all graphs

    def __post_init__(self) -> None:
        most = min(CAPTURED_TOKENS, self.limits.max_tokens) if self.captures else 0
        self._buckets = tuple(each for each in BUCKETS if each <= most)
        size = EncoderInputs.size(most, 0, self.limits.max_rows) if most else 0
        self._numbers = torch.zeros(size, dtype=torch.int32, device=self.device)
        if most:
            self._stream, self._memory = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()

    @property
    def is_pooled(self) -> bool:
        """Whether its output is one row of each pool."""
        return self.output.shape[0] == "pooled"

    def launch(self, batch: Batch) -> PendingVectors:
        """Start a step. The batch's arrays may change as soon as this returns."""
        return convert_out_of_memory(lambda: self._launch(batch))

    def _launch(self, batch: Batch) -> PendingVectors:
        if self.device.type != "cuda":
            return PendingVectors(self.run(batch).float(), self.is_pooled, None)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        found = self.run(batch)
        host = torch.empty(found.shape, pin_memory=True)
        host.copy_(found.float(), non_blocking=True)
        events[1].record()
        return PendingVectors(host, self.is_pooled, events)

    def run(self, batch: Batch) -> Tensor:
        """Start a step on the current stream; return its output, which the next step may overwrite."""
        with torch.no_grad():
            self.rows.give(batch)
            num_tokens, num_pools = len(batch.token_ids), len(batch.pools)
            is_whole = self.is_pooled or len(batch.logits_at) == num_tokens
            captured = self._captured_for(num_tokens) if is_whole and num_pools <= self.limits.max_rows else None
            if captured is not None:
                bucket, (graph, out) = captured
                self._send(batch, (bucket, 0, self.limits.max_rows), self._numbers)
                graph.replay()
                return out[: num_pools if self.is_pooled else num_tokens]
            sizes = (num_tokens, 0 if is_whole else len(batch.logits_at), num_pools)
            return self._finish(self._send(batch, sizes, None), is_whole)

    def run_rows(self, features: Tensor) -> Tensor:
        """Start a step of tokens of one row that have features alone; return its output for all of them."""
        assert self.rows.features is not None
        self.rows.features[: len(features)].copy_(features)
        numbers = torch.arange(len(features), dtype=torch.int32, device=self.device)
        none = numbers[:0]
        return self._finish(EncoderInputs(numbers, numbers, none, none, none.view(0, 3)), is_whole=True)

    def _finish(self, inputs: EncoderInputs, is_whole: bool) -> Tensor:
        none, where = inputs.ids[:0], TokenPlacement(inputs.positions, inputs.positions)
        run = Run(inputs.ids, where, none, {}, none, None if is_whole else inputs.logits_at)
        run.pools, run.token_types = inputs.pools, inputs.types
        for instruction in self.instructions:
            instruction(run)
        return run.whole(self.output.id)

    def _send(self, batch: Batch, sizes: tuple[int, int, int], target: Tensor | None) -> EncoderInputs:
        """Send the step's inputs to the device in one transfer: to `target`, or to new memory."""
        is_cuda, size = self.device.type == "cuda", EncoderInputs.size(*sizes)
        staged = torch.empty(size, dtype=torch.int32, pin_memory=is_cuda)  # freed once it has been copied
        if not sizes[1]:
            batch = replace(batch, logits_at=batch.logits_at[:0])
        EncoderInputs.of(staged.numpy(), *sizes).fill(batch, is_padded=target is not None)
        if target is None:
            return EncoderInputs.of(staged.to(self.device, non_blocking=True), *sizes)
        target[:size].copy_(staged, non_blocking=True)
        return EncoderInputs.of(target, *sizes)

    def _captured_for(self, num_tokens: int) -> tuple[int, CapturedSteps] | None:
        """Return the graph for so many tokens, and how many it has. None: launch the step kernel by kernel."""
        bucket = next((each for each in self._buckets if num_tokens <= each), None)
        if bucket is None or not self.captures:
            return None
        self._uses[bucket] += 1
        if bucket not in self._captured and self._uses[bucket] >= CAPTURED_AT:
            try:
                self._captured[bucket] = convert_out_of_memory(lambda: self._capture(bucket))
            except OutOfDeviceMemory:
                self._captured[bucket] = None
                logger.warning("no memory is left to capture steps of %d tokens: they run without a graph", bucket)
        found = self._captured.get(bucket)
        return None if found is None else (bucket, found)

    def _capture(self, bucket: int) -> CapturedSteps:
        """Capture a step of padding."""
        inputs = EncoderInputs.of(self._numbers, bucket, 0, self.limits.max_rows)
        self._numbers.zero_()
        inputs.pools[:, 1] = 1
        return CapturedSteps(*record(lambda: self._finish(inputs, is_whole=True), self._stream, self._memory))
