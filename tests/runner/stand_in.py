"""Devices for tests of the layers above: one runs the references, one samples tokens, one checks batches."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np

from quire.devices.base import (
    DEFAULT_OPTIONS,
    Device,
    DraftCapacity,
    Limits,
    LoweringOptions,
    Pending,
    Program,
    ReleasesBlocks,
    SamplesTokens,
    StepOutput,
)
from quire.devices.base import open as open_device
from quire.devices.facts import DeviceFacts, DeviceMemory, DeviceUnavailable, MemoryKind
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weights
from quire.ops.batch import Batch
from tests.hardware import has_gpu
from tests.sampling.device_reference import expected_token

OBJECTS = ("draws", "windows", "states", "sources", "features", "keeps_hidden")  # no arrays, or there may be none


@dataclass
class Done:
    """A step that was computed at once."""

    logits: np.ndarray
    hidden: np.ndarray | None = None

    def result(self) -> StepOutput:
        return StepOutput(logits=self.logits, hidden=self.hidden)


STAND_IN = DeviceFacts(
    "stand-in", DeviceMemory(MemoryKind.HOST, 8 << 30), ("f16", "f32", "bf16"), {}, frees_windows=True
)


@dataclass
class InterpreterProgram:
    """Runs every step with the interpreter."""

    interpreter: Interpreter
    num_blocks: int

    def launch(self, batch: Batch) -> Done:
        outputs = self.interpreter.outputs(batch)
        return Done(outputs["logits"], outputs.get("hidden") if batch.keeps_hidden else None)


@dataclass
class InterpreterDevice(Device):
    """What `devices.open` would give."""

    name: str = STAND_IN.name

    def facts(self) -> DeviceFacts:
        return STAND_IN

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> InterpreterProgram:
        interpreter = Interpreter(
            graph,
            weights,
            limits.num_blocks,
            limits.block_tokens,
            num_states=limits.num_states or limits.max_rows,
            windows=dict(limits.windows),
        )
        return InterpreterProgram(interpreter, limits.num_blocks)


@dataclass(eq=False)
class Late:
    """A step of a device that samples tokens: computed when its result, or a later one, is requested."""

    program: ChoosingProgram
    batch: Batch
    output: StepOutput | None = None
    bits: np.ndarray | None = None

    def mask(self, bits: np.ndarray) -> None:
        assert self.bits is None and self.output is None
        assert self.program.waiting[-1] is self, "masks come before the next launch"
        assert bits.dtype == np.uint32 and len(bits) == self.num_masked > 0
        self.bits = bits.copy()

    @property
    def num_masked(self) -> int:
        return 0 if self.batch.draws is None else int(self.batch.draws.masked.sum())

    def result(self) -> StepOutput:
        while self.output is None:
            self.program.compute_next()
        return self.output


@dataclass(eq=False)
class ChoosingProgram:
    """Wraps a program: computes after the launch returns, and samples tokens itself."""

    inner: Program
    max_rows: int
    max_in_flight: int
    draft_capacity: DraftCapacity | None = None
    waiting: deque[Late] = field(default_factory=deque)
    most_waiting: int = 0

    def __post_init__(self) -> None:
        self.last_tokens = np.zeros(self.max_rows, np.int32)

    @property
    def num_blocks(self) -> int:
        return self.inner.num_blocks

    def launch(self, batch: Batch) -> Late:
        assert not self.waiting or self.waiting[-1].bits is not None or not self.waiting[-1].num_masked
        assert batch.draws is not None
        self.waiting.append(Late(self, deepcopy(batch)))
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        assert len(self.waiting) <= self.max_in_flight
        return self.waiting[-1]

    def compute_next(self) -> None:
        late = self.waiting.popleft()
        batch, draws = late.batch, late.batch.draws
        assert draws is not None
        ids, is_here = batch.token_ids.copy(), batch.token_ids < 0
        ids[is_here] = self.last_tokens[-1 - ids[is_here]]
        step = replace(batch, token_ids=ids, draws=None)
        found = self.inner.launch(step).result()
        logits = found.logits
        assert logits is not None
        masks = iter(() if late.bits is None else late.bits)
        tokens = np.full(len(logits), -1, np.int32)
        for entry in np.flatnonzero(draws.rows >= 0):
            tokens[entry] = expected_token(
                logits[entry], draws, int(entry), next(masks) if draws.masked[entry] else None
            )
            self.last_tokens[draws.rows[entry]] = max(tokens[entry], 0)
        late.output = StepOutput(logits=logits[draws.rows < 0], tokens=tokens, hidden=found.hidden)


@dataclass
class ChoosingDevice(Device):
    """Wraps a device that does not sample tokens, and samples them."""

    inner: Device
    max_in_flight: int = 2
    draft_capacity: DraftCapacity | None = None  # None: it is slow at steps with drafts
    name: str = "chooser"

    def facts(self) -> DeviceFacts:
        return self.inner.facts()

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> ChoosingProgram:
        program = self.inner.lower(graph, weights, limits, options)
        return ChoosingProgram(program, limits.max_rows, self.max_in_flight, self.draft_capacity)


@dataclass
class CheckedProgram:
    """Wraps a program: checks every batch, and records its size."""

    inner: Program
    limits: Limits
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # tokens, rows, logits of every step
    released: list[int] = field(default_factory=list)  # the blocks whose memory was given up last
    num_grouped: list[int] = field(default_factory=list)  # rows of every step that share blocks with others of it

    @property
    def num_blocks(self) -> int:
        return self.inner.num_blocks

    def launch(self, batch: Batch) -> Pending:
        batch.check(self.limits.num_blocks, self.limits.block_tokens)
        groups = [*batch.windows, *([batch.states] if batch.states is not None else [])]
        arrays = [getattr(batch, name) for name in Batch.__slots__ if name not in OBJECTS]
        arrays += [getattr(group, name) for group in groups for name in group.__slots__]
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
class CheckedChooser(CheckedProgram):
    """The same for a program that samples tokens."""

    @property
    def max_in_flight(self) -> int:
        assert isinstance(self.inner, SamplesTokens)
        return self.inner.max_in_flight

    @property
    def draft_capacity(self) -> DraftCapacity | None:
        assert isinstance(self.inner, SamplesTokens)
        return self.inner.draft_capacity


@dataclass
class CheckedDevice(Device):
    """Wraps a device: its programs are checked. The number of KV blocks must be set."""

    inner: Device
    programs: list[CheckedProgram] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def facts(self) -> DeviceFacts:
        return self.inner.facts()

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> CheckedProgram:
        assert limits.num_blocks
        program = self.inner.lower(graph, weights, limits, options)
        checked = CheckedChooser if isinstance(program, SamplesTokens) else CheckedProgram
        self.programs.append(checked(program, limits))
        return self.programs[-1]


def devices_here() -> list[str]:
    """Devices for tests of the whole engine: the references, and the CPU and GPU if they can run models here."""
    gpu = ["cuda"] if has_gpu() else []
    try:
        open_device("cpu")
    except DeviceUnavailable:
        return ["stand-in", "chooser", *gpu]
    return ["stand-in", "chooser", "cpu", *gpu]


def device_of(name: str) -> Device:
    """The device of this name; "chooser" has two steps in flight, "chooser-1" one; "chooser-drafts" verifies drafts."""
    if name.startswith("chooser"):
        capacity = DraftCapacity(7, 64) if name == "chooser-drafts" else None
        return ChoosingDevice(InterpreterDevice(), 1 if name == "chooser-1" else 2, capacity)
    return InterpreterDevice() if name == "stand-in" else open_device(name)
