"""Hardware to plan for: memory, bandwidth and arithmetic from data sheets, and the share of them that engines reach.

The shares (`Efficiency`) are fitted to our measurements. On an H200 the 8B in bf16 decodes one stream at 200 to 207
tokens/s (vLLM 0.25.1, SGLang 0.5.16) and multiplies 1,024 rows in 21.95 ms, 66 % of the peak arithmetic. On 2 cores of
an EPYC, Quire decodes at 65 % of the bandwidth and computes prompts at 35 % of the peak of 8-bit products in the block
formats of GGUF; with bf16 weights at a third of that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.devices import base
from quire.devices.facts import DeviceFacts, MemoryKind, device_facts, host_device
from quire.types.errors import InvalidRequest

GB, TB, TFLOPS = 1e9, 1e12, 1e12
HERE = "here"
PROBE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of the peak bandwidth and arithmetic that engines reach, and the fixed cost of a step."""

    bandwidth: float = 0.70
    arithmetic: float = 0.55
    step_seconds: float = 0.0006


@dataclass(frozen=True, slots=True)
class Hardware:
    """The peak figures of one device."""

    name: str
    device: str  # Quire's device for it
    memory_bytes: float
    bandwidth: float  # bytes per second
    arithmetic: dict[str, float]  # operations per second, by precision
    source: str
    efficiency: Efficiency = field(default_factory=Efficiency)

    @property
    def facts(self) -> DeviceFacts:
        """The facts of Quire's device for this hardware."""
        return device_facts(self.device)

    @property
    def memory_kind(self) -> MemoryKind:
        """Does the device share the host's memory, or has it its own?"""
        return self.facts.memory.kind

    def operations(self, precision: str) -> float:
        """Return the operations per second in this precision, or in the nearest one it has."""
        return self.arithmetic.get(precision) or self.arithmetic.get("bf16") or max(self.arithmetic.values())


_CPU_EFFICIENCY = Efficiency(bandwidth=0.65, arithmetic=0.35, step_seconds=0.0003)


def _gpu(name: str, memory: float, bandwidth: float, tflops: Mapping[str, float], source: str) -> Hardware:
    """`memory` in GB, `bandwidth` in TB/s."""
    arithmetic = {precision: value * TFLOPS for precision, value in tflops.items()}
    return Hardware(name, "cuda", memory * GB, bandwidth * TB, arithmetic, source)


def _cpu(name: str, memory: float, bandwidth: float, products: float, source: str) -> Hardware:
    """`products`: 8-bit operations per second; a multiply-add is two."""
    operations = {"block": products, "bf16": products / 3}
    return Hardware(name, host_device(), memory, bandwidth, operations, source, _CPU_EFFICIENCY)


_GPUS = (  # name, GB, TB/s, dense TFLOPS by precision, source
    ("h200", 141, 4.8, {"bf16": 989, "fp8": 1979, "int8": 1979}, "NVIDIA H200 data sheet, dense; 4.34 TB/s measured"),
    ("h100", 80, 3.35, {"bf16": 989, "fp8": 1979, "int8": 1979}, "NVIDIA H100 data sheet, SXM, dense"),
    ("a100", 80, 2.039, {"bf16": 312, "int8": 624}, "NVIDIA A100 data sheet, 80 GB SXM, dense; no FP8"),
    ("l4", 24, 0.3, {"bf16": 121, "fp8": 242, "int8": 242}, "NVIDIA L4 data sheet, half of the figures with sparsity"),
    (
        *("rtx4090", 24, 1.008, {"bf16": 165, "fp8": 330, "int8": 661}),
        "NVIDIA Ada GPU architecture paper, float32 accumulation, dense",
    ),
)
_LAPTOP = _cpu(
    *("laptop", 16 * GB, 65 * GB, 1.8 * TFLOPS),
    "8 cores with AVX2 at 70 % of the clock of the measured EPYC; two channels of DDR5-5600, 89.6 GB/s specified, "
    "65 GB/s read",
)
PRESETS = {each.name: each for each in (*(_gpu(*row) for row in _GPUS), _LAPTOP)}


def find_hardware(name: str) -> Hardware:
    """Return a preset, or measure this machine."""
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if plain in (HERE, "thismachine", "this"):
        return measure_this_machine()
    for key in (plain, plain.removeprefix("nvidia"), f"rtx{plain}"):
        if key in PRESETS:
            return PRESETS[key]
    known = ", ".join((HERE, *PRESETS))
    raise InvalidRequest(f"Unknown hardware {name!r}. Choose from {known}.", field="on")


def measure_this_machine() -> Hardware:
    """Measure this machine in under a second: memory bandwidth and 8-bit operations of all threads."""
    peaks = base.open(host_device()).peaks(PROBE_SECONDS)
    if peaks is None:
        raise InvalidRequest(
            f"Cannot measure this machine: Quire's native kernels are missing. Choose --on from {', '.join(PRESETS)}.",
            field="on",
        )
    operations, load = 2 * peaks.multiply_adds, os.getloadavg()[0]
    busy = (
        f"; other processes were running (load {load:.1f}), so the peak is higher"
        if load > peaks.num_threads / 2
        else ""
    )
    source = (
        f"measured now: {peaks.num_threads} threads, {peaks.kernels}, {peaks.read_bytes / GB:.0f} GB/s, "
        f"{operations / 1e9:,.0f} billion 8-bit operations per second{busy}"
    )
    return _cpu(HERE, float(base.host_bytes()), peaks.read_bytes, operations, source)
