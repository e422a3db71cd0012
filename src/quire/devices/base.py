"""The contract of a device: it lowers a graph into a program, and the program runs steps.

A device is a folder of this package with a module-level `DEVICE`. It is opened by name and never imported by name, so a
machine without it, or without what it needs, is no worse off. `Batch` comes from ops, where references read it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, runtime_checkable

from numpy.typing import NDArray

from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.ops.batch import Batch
from quire.types.errors import QuireError

Array = NDArray[Any]

AUTO, CPU, GPU = "auto", "cpu", "cuda"
GPU_NEEDS = ("torch", "triton")  # packages; a torch that was built for CPUs alone comes without the second
GPU_CONTROL = Path("/dev/nvidiactl")  # is there where a GPU and its driver are


class DeviceUnavailable(QuireError):
    """There is no such device, or this machine cannot run it."""

    code = "device_unavailable"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one step may hold. Known when lowering, so that every buffer is planned once."""

    max_tokens: int  # T
    max_rows: int  # R
    max_logits: int  # L: as many as rows, and more with drafts or with logprobs of prompts
    max_blocks: int  # B: blocks of one row
    num_blocks: int  # of the whole KV cache: what memory is reserved for, and perhaps not all in use; 0: see HasMemory
    block_tokens: int = 16
    kv_dtype: str = "f16"  # how the cache stores K and V: a choice of the one who runs the model, not of the model


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The result of a step, one entry for each token of batch.logits_at."""

    # float32 [L, vocab]; None: the graph has no head. If the device samples, [H, vocab]: only the entries that
    # batch.draws leaves to the host, in order; H may be 0.
    logits: Array | None
    # [L, K] as many as batch.num_top says, likeliest first, equal ones by id. None: the device does not compute them.
    top_tokens: Array | None = None  # int32; -1 if a logit of the row is NaN
    top_logits: Array | None = None  # float32
    # int32 [L] the tokens sampled on the device by batch.draws. -1: the host samples, or a logit is NaN or infinite, or
    # no token is left.
    tokens: Array | None = None
    seconds: float | None = None  # device-busy seconds, if the device measures them


@runtime_checkable
class Pending(Protocol):
    """A launched step."""

    def result(self) -> StepOutput:
        """Wait for the step. A second call returns the same output."""
        ...


@runtime_checkable
class Program(Protocol):
    """A model lowered for one device. It owns its buffers and its KV cache."""

    def launch(self, batch: Batch) -> Pending:
        """Start a step of any size up to the limits. Steps take effect in the order of their launches.

        Raises OutOfDeviceMemory if there is not enough. Then the last tokens of rows are unchanged, KV has changed only
        in the slots of this step, cached memory has been freed, and the step can be launched again.
        """
        ...


class PendingSampling(Pending, Protocol):
    """A launched step that ends with sampling on the device."""

    def mask(self, bits: Array) -> None:
        """Provide the grammar masks, uint32 [number of masked entries, words], in the order of batch.logits_at.

        Called once, before `result` and before the next launch, if any entry of batch.draws is masked; else never.
        It is called while the device computes the step: only sampling waits for the masks.
        """
        ...


@runtime_checkable
class SamplesTokens(Protocol):
    """A program that samples tokens by batch.draws, and stores the last token of each row for the next step.

    If no token can be sampled for a row, any token is stored: what is computed from it is discarded.
    """

    @property
    def max_in_flight(self) -> int:
        """Steps that may be launched before the result of the first one is collected."""
        ...

    def launch(self, batch: Batch) -> PendingSampling:
        """Launch a step like a Program, but return while the device computes. Then the batch's arrays may change."""
        ...


@runtime_checkable
class ReleasesBlocks(Protocol):
    """A program that can return memory of its KV cache to the system until it is written again."""

    def release_blocks(self, blocks: Array) -> int:
        """Free blocks that will not be read before they are written, int32 and ascending. Return the bytes freed."""
        ...


@runtime_checkable
class UsesIdleTime(Protocol):
    """A program that prepares kernels or graphs while the engine is idle."""

    def use_idle_time(self) -> bool:
        """Prepare for a few hundredths of a second. Return False if nothing is left to prepare."""
        ...


@runtime_checkable
class Tunable(Protocol):
    """A program that can measure which of its kernels are fastest here, for the next start."""

    def tune(self) -> Iterator[str]:
        """Tune everything now; yield a line for people for each product."""
        ...


@runtime_checkable
class PadsSteps(Protocol):
    """A program that pads steps to prepared sizes."""

    @property
    def num_padded(self) -> int:
        """Padding tokens computed in all steps so far."""
        ...


@runtime_checkable
class ReportsKernels(Protocol):
    """A program that has measured which of its kernels are the fastest here."""

    @property
    def kernels(self) -> dict[str, dict[str, float]]:
        """Per number format: the kernels in use first, with 1, then others with their times relative to it."""
        ...


@runtime_checkable
class ReportsFormats(Protocol):
    """A program that reports the formats of its matrices, which may differ from those of the file."""

    @property
    def formats(self) -> Mapping[str, int]:
        """Weights of matrices by the format in which they are multiplied."""
        ...


class WeightCache(Protocol):
    """A cache of the packed weights of one model, for the next lowering.

    A recipe identifies the device and everything that determines the packed bytes. The device names its arrays.
    """

    def find(self, recipe: str) -> Mapping[str, Array] | None:
        """Return the cached uint8 arrays, read only, each page-aligned. None if there are none, or they are damaged."""
        ...

    def keep(self, recipe: str, arrays: Mapping[str, Array]) -> None:
        """Write the arrays if possible. Never fails; continues after it returns, so the arrays must not change."""
        ...


@runtime_checkable
class Device(Protocol):
    """A place where models run."""

    @property
    def name(self) -> str: ...

    def lower(self, graph: Graph, weights: Weights, limits: Limits, kept: WeightCache | None = None) -> Program:
        """Fuse, choose kernels, repack and place weights, plan buffers. What `kept` has need not be repacked."""
        ...


class LoweringOptions(TypedDict, total=False):
    """What whoever runs a model wants of a device, beyond the limits."""

    dtype: str | None  # of activations; None: what suits the device
    quantize: str | None  # what matrices become when they are loaded: fp8, plain (dtype); None: they stay as they are
    deterministic: bool  # a token's numbers do not depend on company, chunks or hits
    captures: bool  # steps may be recorded, and replayed as one
    tuned: Path | None  # folder of what was found fastest on this machine; None: there is none
    tune: bool  # find it in idle time, for the next start
    memory_share: float  # of the device's memory, for all of a program


@runtime_checkable
class HasMemory(Protocol):
    """A device with memory of its own. Of limits with 0 blocks it makes a program with as many as fit."""

    @property
    def kv_dtype(self) -> str:
        """How it stores K and V unless it is told otherwise."""
        ...

    def lower(
        self,
        graph: Graph,
        weights: Weights,
        limits: Limits,
        kept: WeightCache | None = None,
        **wishes: Unpack[LoweringOptions],
    ) -> SizedProgram:
        """As a Device's."""
        ...


@runtime_checkable
class SizedProgram(Program, Protocol):
    """A program that knows how many KV blocks it has."""

    @property
    def num_blocks(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine could do at most, for benchmarks to measure a program against."""

    read_bytes: float  # a second, from memory that no cache holds
    multiply_adds: float  # a second, of 8-bit numbers that lie in registers
    num_threads: int
    kernels: str  # which of the device's kernels these are the limits of


@runtime_checkable
class Measurable(Protocol):
    """A device that can tell its limits."""

    def peaks(self, seconds: float = 1.0) -> Peaks | None:
        """Measure each for so long. None if it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class Description:
    """What a device would do on this machine, and why: for people."""

    kernels: str | None  # the kernels that steps will run on; None: the references
    why: str
    features: tuple[str, ...]  # of the hardware, by the names that its makers have for them
    num_threads: int
    num_processors: int  # that the machine has
    is_broken: bool = False  # something is there that should work, and does not
    remedy: str = ""  # how to get what is missing


@runtime_checkable
class Describable(Protocol):
    """A device that can tell what it would do."""

    def describe(self) -> Description:
        """Without loading a model."""
        ...


def available() -> tuple[str, ...]:
    """Names of the devices that are part of this installation. Whether one can run here is known when it is opened."""
    package = importlib.import_module("quire.devices")
    found = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(module.name for module in found if module.ispkg and not module.name.startswith("_")))


def choose(name: str, control: Path = GPU_CONTROL) -> str:
    """The device that this name means here: `auto` is a GPU if there is one and what it needs, else the CPU.

    Nothing is imported for it: whoever only asks does not wait seconds for torch.
    """
    if name != AUTO:
        return name
    return GPU if control.exists() and all(find_spec(package) is not None for package in GPU_NEEDS) else CPU


def open(name: str) -> Device:
    """The device of this name, or the one that `auto` means: its folder is imported here, and nowhere else."""
    name = choose(name)
    if name not in available():
        raise DeviceUnavailable(f"There is no device {name!r}. Installed are: {', '.join(available()) or 'none'}.")
    device = getattr(importlib.import_module(f"quire.devices.{name}"), "DEVICE", None)
    if not isinstance(device, Device):
        raise DeviceUnavailable(f"The device {name!r} cannot run models yet.")
    return device
