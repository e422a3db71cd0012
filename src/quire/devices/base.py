"""The contract of a device: it lowers a graph into a program, and the program runs steps.

A device is a folder of this package: `FACTS` in its `__init__.py` (see facts.py), `DEVICE` in its `device.py`, and
`PLAN` in its `plan.py` (see `step_bytes`). It is opened by name and never imported by name, so a machine that cannot
run it is no worse off.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from quire.devices.facts import DeviceFacts, DeviceUnavailable, device_facts, host_device
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.ops.batch import Batch

Array = NDArray[Any]
Precision = Literal["native", "float", "q8_0"]


class WindowLimits(NamedTuple):
    """A window group of a program: its layers have block tables of their own, and a cache of so many blocks."""

    window: int  # the reach of its layers' queries
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one step may hold. Known when lowering, so that every buffer is planned once."""

    max_tokens: int  # T
    max_rows: int  # R
    max_logits: int  # L: as many as rows, and more with drafts or with logprobs of prompts
    max_blocks: int  # B: blocks of one row
    num_blocks: int  # of the whole KV cache: what memory is reserved for; 0: as many as fit (MemoryKind.OWN alone)
    block_tokens: int = 16
    kv_dtype: str = "f16"  # how the cache stores K and V: a setting, not a property of the model
    windows: tuple[WindowLimits, ...] = ()  # the reaches whose layers have block tables of their own
    num_states: int = 0  # slots for states of recurrent layers; 0: one for each row
    num_source_blocks: int = 0  # of the cache of encoders' outputs; 0: no layer reads one
    max_source_blocks: int = 0  # of one row


class DraftCapacity(NamedTuple):
    """The most that a step with drafts may have."""

    row_drafts: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The result of a step: one entry for each token of batch.logits_at, and one for each of batch.pools."""

    # float32 [L, vocab]; None: the graph has no head. If the device samples, [H, vocab]: only the entries that
    # batch.draws leaves to the host, in order; H may be 0.
    logits: Array | None
    # [L, K] as many as batch.num_top says, likeliest first, equal ones by id. None: the device does not compute them.
    top_tokens: Array | None = None  # int32; -1 if a logit of the row is NaN
    top_logits: Array | None = None  # float32
    # int32 [L] the tokens sampled on the device by batch.draws. -1: the host samples, or a logit is NaN or infinite, or
    # no token is left.
    tokens: Array | None = None
    pooled: Array | None = None  # float32 [P, dim], one for each of batch.pools; None: the graph does not pool
    # float32 [T, dim]: the graph's hidden outputs, side by side. None: the graph has none, or the batch does not
    # request them (batch.keeps_hidden).
    hidden: Array | None = None
    seconds: float | None = None  # device-busy seconds, if the device measures them
    is_typical: bool = True  # False: steps of this size will be faster from now on, as the device has prepared for them


@runtime_checkable
class Pending(Protocol):
    """A launched step."""

    def result(self) -> StepOutput:
        """Wait for the step. A second call returns the same output."""
        ...


@runtime_checkable
class Program(Protocol):
    """A model lowered for one device. It owns its buffers and its KV cache."""

    @property
    def num_blocks(self) -> int:
        """Blocks of its KV cache."""
        ...

    def launch(self, batch: Batch) -> Pending:
        """Start a step of any size up to the limits. Steps take effect in the order of their launches.

        Raises OutOfDeviceMemory if there is not enough. Then the last tokens of rows are unchanged, KV has changed only
        in the slots of this step, cached memory has been freed, and the step can be launched again.
        """
        ...


@runtime_checkable
class RunsAhead(Protocol):
    """A program whose launches return while the device computes."""

    @property
    def max_in_flight(self) -> int:
        """Steps that may be launched before the result of the first one is collected."""
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

    @property
    def draft_capacity(self) -> DraftCapacity | None:
        """The steps with drafts that take little longer than those without; None: all take much longer."""
        ...

    def launch(self, batch: Batch) -> PendingSampling:
        """Launch a step like a Program, but return while the device computes. Then the batch's arrays may change."""
        ...


@runtime_checkable
class StoresSources(Protocol):
    """A program whose layers read sources: the output of an encoder, as keys and values of each layer."""

    def store_source(self, slots: Array, pairs: Array) -> None:
        """Store keys and values of some tokens of sources: slots int32 [n], pairs float32 [n, all layers].

        A layer's numbers are its keys, then its values; the layers are in the order of the graph's caches.
        """
        ...


@runtime_checkable
class ComputesSources(Protocol):
    """A program that computes sources on its own device, so that the encoder's output stays there."""

    def compute_source(self, batch: Batch, slots: Array, encoder: Program, pairs: Program) -> None:
        """Run the encoder, then `pairs` on its output, and store the result in slots int32 [T]. All on one device."""
        ...


@runtime_checkable
class ReleasesBlocks(Protocol):
    """A program that can return memory of its KV cache to the system until it is written again."""

    def release_blocks(self, blocks: Array) -> int:
        """Free blocks that will not be read before they are written, int32 and ascending. Return the bytes freed."""
        ...


@runtime_checkable
class MovesBlocks(Protocol):
    """A program whose KV blocks and states can be copied to a program with the same weights and `block_layout`.

    The bytes are those of the program's memory, so what the other program computes from them is bit-equal.
    """

    @property
    def block_layout(self) -> str:
        """Return all that the bytes depend on except weights and text. Empty: its blocks cannot be copied."""
        ...

    @property
    def has_own_memory(self) -> bool:
        """Return whether its blocks are in device memory instead of host memory."""
        ...

    def block_bytes(self, group: int) -> int:
        """Return the bytes of a group's block, over its layers. Group 0: full-attention layers; then window groups."""
        ...

    def read_blocks(self, group: int, blocks: Array) -> Array:
        """Return the bytes of blocks, int32 [n]: uint8 [n, block_bytes(group)].

        Call it between two launches. The results of the steps that wrote these blocks have been collected, and no step
        in flight writes them; others may be in flight.
        """
        ...

    def write_blocks(self, group: int, blocks: Array, data: Array) -> None:
        """Overwrite distinct blocks with bytes that `read_blocks` of another program returned.

        Call it between two launches: steps in flight still read the old bytes, and the next step reads the new ones.
        `data` may change as soon as this returns.
        """
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of a state, over the recurrent layers; 0: there are none."""
        ...

    def read_state(self, slot: int) -> Array:
        """Return the bytes of a state, uint8 [state_bytes], as `read_blocks` does."""
        ...

    def write_state(self, slot: int, data: Array) -> None:
        """Overwrite a state, as `write_blocks` does."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringOptions:
    """Choices for a lowering, beyond the limits. A device ignores those that its hardware has no use for."""

    dtype: str | None = None  # of activations; None: the device's default
    quantize: str | None = (
        None  # what matrices become when they are loaded: a conversion of the device; None: as stored
    )
    fuse: bool = True  # False: plain kernels alone
    deterministic: bool = False  # a token's numbers do not depend on other requests, chunks or cache hits
    samples: bool = True  # False: no tokens are sampled from its logits; another program reads them as rows
    captures: bool = True  # steps may be recorded, and replayed as one
    tuned: Path | None = None  # folder of what was found fastest on this machine; None: there is none
    tune: bool = False  # find it in idle time, for the next start
    memory_share: float = 0.9  # of the device's memory, for all of a program
    experts_on_host: int | None = 0  # bytes of experts to keep in host memory; None: as few as needed to fit
    kept: WeightCache | None = None  # packed weights of earlier lowerings; what it has need not be packed again
    precision: Precision = "native"  # "native": weights stay in the format of their file, and quantized ones are
    # multiplied with activations of 8 bits. "float": everything is float32, as the references compute.
    num_threads: int | None = None  # None: as many as this process may use; never more than that
    variant: str | None = (
        None  # of the kernels; None: the widest that this machine can run, and for products the fastest
    )


DEFAULT_OPTIONS = LoweringOptions()


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that this machine can do, for benchmarks to measure a program against."""

    read_bytes: float  # a second, from memory that no cache holds
    multiply_adds: float  # a second, of 8-bit numbers that lie in registers
    num_threads: int
    kernels: str  # which of the device's kernels these are the limits of


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Which kernels a device would run on this machine, and why: for people."""

    kernels: str | None  # the kernels that steps will run on; None: the references
    why: str
    features: tuple[str, ...]  # of the hardware, by the names that its makers have for them
    num_threads: int
    num_processors: int  # that the machine has
    is_broken: bool = False  # something is there that should work, and does not
    remedy: str = ""  # how to get what is missing


@runtime_checkable
class Device(Protocol):
    """A place where models run."""

    @property
    def name(self) -> str: ...

    def facts(self) -> DeviceFacts:
        """Its memory, with its size where that can be read, and its number formats."""
        ...

    def lower(
        self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions = DEFAULT_OPTIONS
    ) -> Program:
        """Fuse, choose kernels, repack and place weights, plan buffers."""
        ...

    def describe(self) -> KernelReport:
        """Which kernels it would run, without loading a model. Unless a device says otherwise: the references."""
        return KernelReport(None, "this device has no kernels", (), 1, os.cpu_count() or 1)

    def peaks(self, seconds: float = 1.0) -> Peaks | None:
        """Measure each limit of the machine for so long. None, as here: this device cannot."""
        return None


StepPlan = Callable[[Graph, Weights, Limits, LoweringOptions], int]


def open(name: str) -> Device:
    """The device of this name, or the one that `auto` means: its folder is imported here, and nowhere else."""
    name = device_facts(name).name
    device = getattr(importlib.import_module(f"quire.devices.{name}.device"), "DEVICE", None)
    if not isinstance(device, Device):
        raise DeviceUnavailable(f"The device {name!r} cannot run models yet.")
    return device


def step_bytes(facts: DeviceFacts, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions) -> int:
    """Return the bytes of the buffers that the device's program of this graph has, by the plan that it is lowered by.

    No number of a weight is read. The device need not be on this machine. One without a plan has no such buffers.
    """
    if facts.plan is None:
        return 0
    plan: StepPlan = importlib.import_module(facts.plan).PLAN
    return plan(graph, weights, limits, options)


def host_bytes() -> int:
    """The host's memory that this process may use."""
    total = open(host_device()).facts().memory.total_bytes
    assert total is not None, "the host's device always knows"
    return total
