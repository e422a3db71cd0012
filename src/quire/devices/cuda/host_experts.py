"""Experts in host memory: the GPU reads them there, at the addresses in the table of their layer.

Reads of every expert are counted on the device, in the steps themselves, captured ones included. Every few steps, and
in idle time, the counts are copied to the host without waiting for them; once they are there, experts exchange their
places (expert_placement.py), between two steps: bytes are moved and the table is changed on the stream of the steps. So
a step finds an expert where the table says, and which bytes it reads never depends on where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from quire.devices.base import host_bytes
from quire.devices.facts import DeviceUnavailable
from quire.graph.graph import Graph
from quire.graph.weight import Weight

from . import FACTS
from .expert_placement import Bandwidths, HostChoice, TokenBytes, exchanges
from .expert_weights import ExpertMatrices, expert_sizes
from .experts import Experts, stacks_of
from .weights import TO_FP8, TO_PLAIN, Placer

logger = logging.getLogger("quire.devices.cuda")

STEPS = 64  # between two looks at the counts
DECAY = 0.5  # of counts, at every look
MOST = 2  # exchanges of a layer at a time
MEASURED_BYTES = 256 << 20
HOST_SHARE = 0.9  # of the host's memory, at most
EXPERT_OPS = ("experts", "experts_add")
WIDTHS = {"f8_e4m3": 1.0, "int4": 0.625}  # bytes of a number, with its part of the scales


@dataclass(slots=True, eq=False)
class HostExperts:
    """The layers that have experts in host memory. Only this object changes their tables."""

    layers: Sequence[Experts]
    reads: Tensor  # int32 [layers, experts], on the device; views of it are the counters of the layers
    num_exchanged: int = 0
    _copied: Tensor = field(init=False)  # the counts, on the host
    _recent: Tensor = field(init=False)  # float32: with earlier counts, which count less and less
    _is_copied: Any = None  # torch.cuda.Event: after the copy; None: none is under way
    _moved: Tensor = field(init=False)  # bytes of an expert that change places
    _steps: int = 0

    def __post_init__(self) -> None:
        is_cuda = self.reads.device.type == "cuda"
        self._copied = torch.zeros(self.reads.shape, dtype=self.reads.dtype, pin_memory=is_cuda)
        self._recent = torch.zeros(self.reads.shape)
        stacks = [stack for layer in self.layers for stack in (layer.linear.inward, layer.linear.outward)]
        most = max(stack.memory.shape[1] for stack in stacks)
        self._moved = torch.empty(most, dtype=torch.uint8, device=self.reads.device)

    @classmethod
    def of(cls, instructions: Sequence[Any]) -> HostExperts | None:
        """Collect the layers that have experts in host memory, and count their reads. None: there are none."""
        layers = [each for each in instructions if isinstance(each, Experts) and each.linear.inward.host is not None]
        if not layers:
            return None
        most = max(layer.linear.num_experts for layer in layers)
        reads = torch.zeros((len(layers), most), dtype=torch.int32, device=layers[0].linear.inward.memory.device)
        for layer, counters in zip(layers, reads, strict=True):
            layer.linear.reads = counters
        return cls(layers, reads)

    def before_step(self) -> None:
        """Look at the counts every few steps. Nothing waits: copies that are under way are looked at later."""
        self._steps += 1
        if self._steps >= STEPS or self._is_copied is not None:
            self.advance()

    def advance(self) -> bool:
        """Copy the counts, or exchange experts if they have been copied. Return False if nothing is left to do."""
        if self._is_copied is None:
            if self._steps == 0:
                return False
            self._copied.copy_(self.reads, non_blocking=True)
            self.reads.zero_()
            self._is_copied, self._steps = _Now() if self.reads.device.type != "cuda" else torch.cuda.Event(), 0
            self._is_copied.record()
            return True
        if not self._is_copied.query():
            return True
        self._is_copied = None
        self._recent = self._recent * DECAY + self._copied
        for layer, reads in zip(self.layers, self._recent.tolist(), strict=True):
            self._exchange_in(layer, reads[: layer.linear.num_experts])
        return False

    def _exchange_in(self, layer: Experts, reads: Sequence[float]) -> None:
        stacks = (layer.linear.inward, layer.linear.outward)
        for pair in exchanges(reads, [stacks[0].is_on_gpu(expert) for expert in range(len(reads))], MOST):
            for stack in stacks:
                stack.exchange(*pair, self._moved)
            self.num_exchanged += 1


class _Now:
    """An event of a device that computes while the host waits."""

    def record(self) -> None: ...
    def query(self) -> bool:
        return True


def host_share(graph: Graph, placer: Placer, choice: HostChoice, room: int | None) -> float:
    """Return the share of the experts to keep in host memory. `room`: bytes of the GPU for all weights."""
    nodes = [node for node in graph.nodes if node.op.name in EXPERT_OPS]
    sizes = [expert_sizes(placer, names) for node in nodes for names in stacks_of(node)]
    if room is not None:
        room -= other_bytes(graph, placer)
    expert_bytes = sum(count * size for count, size in sizes)
    share = choice.share(expert_bytes, room)
    if share and share * expert_bytes > (most := HOST_SHARE * host_bytes()):
        raise DeviceUnavailable(
            f"{share * expert_bytes / 1e9:.1f} GB of this model's experts would be in host memory, which has room for "
            f"{most / 1e9:.1f} GB. Use a smaller model, or quantize it."
        )
    return share


def other_bytes(graph: Graph, placer: Placer) -> int:
    """Return about how many bytes the weights take that are not experts'."""
    experts = {
        name for node in graph.nodes if node.op.name in EXPERT_OPS for names in stacks_of(node) for name in names
    }
    others = {id(placer.weights[name]): placer.weights[name] for name in graph.weight_names() if name not in experts}
    return int(sum(prod(weight.shape) * _width(weight, placer) for weight in others.values()))


def _width(weight: Weight, placer: Placer) -> float:
    """Bytes of a number once it is placed."""
    if len(weight.shape) < 2:
        return 4.0
    if placer.quantize == TO_FP8:
        return 1.0
    resident = FACTS.weight_formats.get(weight.format)
    if placer.quantize == TO_PLAIN or resident not in WIDTHS:
        return float(placer.dtype.itemsize)
    return WIDTHS[resident]


def measure_bandwidths(device: torch.device) -> Bandwidths | None:
    """Measure both by copies of some hundred megabytes. None: not on this device."""
    if device.type != "cuda":
        return None
    on_gpu = torch.empty((2, MEASURED_BYTES), dtype=torch.uint8, device=device)
    on_host = torch.empty(MEASURED_BYTES, dtype=torch.uint8, pin_memory=True)
    gpu = 2 * MEASURED_BYTES / _seconds(lambda: on_gpu[0].copy_(on_gpu[1]))  # read and written
    return Bandwidths(gpu, MEASURED_BYTES / _seconds(lambda: on_gpu[0].copy_(on_host, non_blocking=True)))


def _seconds(run: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def report(layers: Sequence[Experts], other_bytes: int, bandwidths: Bandwidths | None) -> str:
    """Say how much is where, and which speed to expect."""
    on_gpu = sum(stack.memory.numel() for stack in _stacks(layers))
    on_host = sum(0 if stack.host is None else stack.host.numel() for stack in _stacks(layers))
    parts = [
        f"experts: {on_gpu / 1e9:.2f} GB are on the GPU, {on_host / 1e9:.2f} GB in host memory",
    ]
    if bandwidths is not None:
        token = token_bytes(layers, other_bytes)
        parts.append(
            f"a request that runs alone can reach {token.tokens_per_second(bandwidths):.0f} tokens/s: for a token, "
            f"{token.gpu / 1e9:.2f} GB are read at {bandwidths.gpu / 1e9:.0f} GB/s and {token.host / 1e9:.2f} GB at "
            f"{bandwidths.host / 1e9:.0f} GB/s, and less from the host once the experts in use have moved"
        )
    return "; ".join(parts)


def token_bytes(layers: Sequence[Experts], other_bytes: int) -> TokenBytes:
    """Return the bytes that are read for a token: all other weights, and of each layer the experts that it chooses."""
    gpu, host = float(other_bytes), 0.0
    for layer in layers:
        for stack in _stacks([layer]):
            of_chosen = layer.top * stack.memory.shape[1]
            share = 0.0 if stack.host is None else len(stack.host) / stack.num_experts
            gpu, host = gpu + of_chosen * (1 - share), host + of_chosen * share
    return TokenBytes(gpu, host)


def _stacks(layers: Sequence[Experts]) -> list[ExpertMatrices]:
    return [stack for layer in layers for stack in (layer.linear.inward, layer.linear.outward)]
