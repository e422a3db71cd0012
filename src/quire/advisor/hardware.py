"""Machines to run on: memory, bandwidth and arithmetic from their makers' data sheets, and what engines reach of it.

`reach` has the shares of the two that a good engine gets in a step, fitted to figures that we measured. On an H200 the
8B in bf16 decodes one stream at 200 to 207 tokens/s (vLLM 0.25.1, SGLang 0.5.16) and multiplies 1,024 rows in 21.95 ms,
66 % of the arithmetic. On 2 cores of an EPYC Quire reads weights at 65 % of the bandwidth when it decodes, and reaches
35 % of the peak of 8-bit products with prompts, in the block formats of GGUF; with bf16 weights a third of that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from quire.devices import base
from quire.devices.facts import DeviceFacts, MemoryKind, device_facts, host_device
from quire.types.errors import InvalidRequest

GB, TB, TFLOPS = 1e9, 1e12, 1e12
HERE = "here"
PROBE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Reach:
    """Shares of the peaks that engines get, and what a step costs besides."""

    bandwidth: float = 0.70
    arithmetic: float = 0.55
    step_seconds: float = 0.0006


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device."""

    name: str
    device: str  # Quire's device for it
    memory_bytes: float
    bandwidth: float  # bytes a second
    arithmetic: dict[str, float]  # operations a second, by the precision of the products
    source: str
    reach: Reach = field(default_factory=Reach)

    @property
    def facts(self) -> DeviceFacts:
        """What Quire's device for it has."""
        return device_facts(self.device)

    @property
    def memory_kind(self) -> MemoryKind:
        """Whose memory models run in."""
        return self.facts.memory.kind

    def operations(self, precision: str) -> float:
        """Operations a second in this precision, or in the nearest that it has."""
        return self.arithmetic.get(precision) or self.arithmetic.get("bf16") or max(self.arithmetic.values())


_CPU_REACH = Reach(bandwidth=0.65, arithmetic=0.35, step_seconds=0.0003)


def _cpu(name: str, memory: float, bandwidth: float, products: float, source: str) -> Hardware:
    """`products`: operations a second with 8 bits, two for each multiply-add."""
    return Hardware(
        name, host_device(), memory, bandwidth, {"block": products, "bf16": products / 3}, source, _CPU_REACH
    )


PRESETS = {
    each.name: each
    for each in (
        Hardware(
            "h200", "cuda", 141 * GB, 4.8 * TB, {"bf16": 989 * TFLOPS, "fp8": 1979 * TFLOPS, "int8": 1979 * TFLOPS},
            "NVIDIA H200 data sheet, dense; 4.34 TB/s measured",
        ),
        Hardware(
            "h100", "cuda", 80 * GB, 3.35 * TB, {"bf16": 989 * TFLOPS, "fp8": 1979 * TFLOPS, "int8": 1979 * TFLOPS},
            "NVIDIA H100 data sheet, SXM, dense",
        ),
        Hardware(
            "a100", "cuda", 80 * GB, 2.039 * TB, {"bf16": 312 * TFLOPS, "int8": 624 * TFLOPS},
            "NVIDIA A100 data sheet, 80 GB SXM, dense; no FP8",
        ),
        Hardware(
            "l4", "cuda", 24 * GB, 0.3 * TB, {"bf16": 121 * TFLOPS, "fp8": 242 * TFLOPS, "int8": 242 * TFLOPS},
            "NVIDIA L4 data sheet, halves of the figures with sparsity",
        ),
        Hardware(
            "rtx4090", "cuda", 24 * GB, 1.008 * TB, {"bf16": 165 * TFLOPS, "fp8": 330 * TFLOPS, "int8": 661 * TFLOPS},
            "NVIDIA Ada GPU architecture paper, float32 accumulation, dense",
        ),
        _cpu(
            "laptop", 16 * GB, 65 * GB, 1.8 * TFLOPS,
            "8 cores with AVX2 at 70 % of the clock of the EPYC that we measured; two channels of DDR5-5600, 89.6 GB/s "
            "by specification, 65 read",
        ),
    )
}  # fmt: skip


def hardware_named(name: str) -> Hardware:
    """A preset, or this machine."""
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if wanted in (HERE, "thismachine", "this"):
        return this_machine()
    for key in (wanted, wanted.removeprefix("nvidia"), f"rtx{wanted}"):
        if key in PRESETS:
            return PRESETS[key]
    known = ", ".join((HERE, *PRESETS))
    raise InvalidRequest(f"There are no figures of {name!r}: choose from {known}.", field="on")


def this_machine() -> Hardware:
    """Measured in less than a second: what all threads read, and the products of 8 bits that they make."""
    peaks = base.open(host_device()).peaks(PROBE_SECONDS)
    if peaks is None:
        raise InvalidRequest(
            f"This machine cannot be measured: its native kernels are missing. Choose from {', '.join(PRESETS)}.",
            field="on",
        )
    operations, load = 2 * peaks.multiply_adds, os.getloadavg()[0]
    busy = f", while other things ran (load {load:.1f}): it can do more" if load > peaks.num_threads / 2 else ""
    source = (
        f"measured just now: {peaks.num_threads} threads, {peaks.kernels}, {peaks.read_bytes / GB:.0f} GB/s, "
        f"{operations / 1e9:,.0f} billion 8-bit operations a second{busy}"
    )
    return _cpu(HERE, float(base.host_bytes()), peaks.read_bytes, operations, source)
