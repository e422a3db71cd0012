"""A device made of the references alone, and one that checks another: for tests of what stands above devices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.devices.base import (
    Device,
    DeviceUnavailable,
    KeptWeights,
    Limits,
    Pending,
    Program,
    ReleasesBlocks,
    StepOutput,
)
from quire.devices.base import open as open_device
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weights
from quire.ops.batch import Batch


@dataclass
class Done:
    """A step that was computed at once."""

    logits: np.ndarray

    def result(self) -> StepOutput:
        return StepOutput(logits=self.logits)


@dataclass
class InterpreterProgram:
    """Runs every step with the interpreter."""

    interpreter: Interpreter

    def launch(self, batch: Batch) -> Done:
        return Done(self.interpreter.run(batch))


@dataclass
class InterpreterDevice:
    """What `devices.open` would give."""

    name: str = "stand-in"

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, kept: KeptWeights | None = None
    ) -> InterpreterProgram:
        return InterpreterProgram(Interpreter(graph, weights, limits.num_blocks, limits.block_tokens))


@dataclass
class CheckedProgram:
    """Another program, which is given no batch that is not sound; and a record of their sizes."""

    inner: Program
    limits: Limits
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # tokens, rows, logits of every step
    released: list[int] = field(default_factory=list)  # the blocks whose memory was given up last
    num_grouped: list[int] = field(default_factory=list)  # rows of every step that share blocks with others of it

    def launch(self, batch: Batch) -> Pending:
        batch.check(self.limits.num_blocks, self.limits.block_tokens)
        arrays = [getattr(batch, name) for name in Batch.__slots__ if name != "draws"]
        assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)
        assert len(batch.token_ids) <= self.limits.max_tokens and len(batch.logits_at) <= self.limits.max_logits
        self.batches.append((len(batch.token_ids), len(batch.lengths), len(batch.logits_at)))
        self.num_grouped.append(len(batch.groups))
        return self.inner.launch(batch)

    def release_blocks(self, blocks: np.ndarray) -> int:
        assert blocks.dtype == np.int32 and (np.diff(blocks) > 0).all() and (blocks < self.limits.num_blocks).all()
        self.released = blocks.tolist()
        return self.inner.release_blocks(blocks) if isinstance(self.inner, ReleasesBlocks) else 0


@dataclass
class CheckedDevice:
    """Another device, whose programs are checked."""

    inner: Device
    programs: list[CheckedProgram] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def lower(self, graph: Graph, weights: Weights, limits: Limits, kept: KeptWeights | None = None) -> CheckedProgram:
        self.programs.append(CheckedProgram(self.inner.lower(graph, weights, limits, kept), limits))
        return self.programs[-1]


def devices_here() -> list[str]:
    """Those that tests of the whole engine run on: the references, and the CPU where it can run models."""
    try:
        open_device("cpu")
    except DeviceUnavailable:
        return ["stand-in"]
    return ["stand-in", "cpu"]


def device_of(name: str) -> Device:
    return InterpreterDevice() if name == "stand-in" else open_device(name)
