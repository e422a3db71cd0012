"""Options for a model that does not fit: smaller weights on the same device, or another device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quire.advisor.hardware import PRESETS
from quire.advisor.kv_memory import KVMemory
from quire.advisor.number_format import format_bytes
from quire.advisor.roofline import Roofline
from quire.advisor.what_if import SMALLER_WEIGHTS


def fitting_alternatives(roofline: Roofline, memory: KVMemory) -> list[str]:
    """Return the options of `quire advise` with which the model fits, each with required and available memory."""
    same_device = [
        f"--precision {other.shape.precision} ({_memory_text(other)})" for other in _fitting(roofline, memory)
    ]
    return [*same_device, *_other_devices(roofline, memory)]


def _other_devices(roofline: Roofline, memory: KVMemory) -> Iterator[str]:
    """Yield the devices on which it fits, each with the largest weights that fit."""
    for name, hardware in PRESETS.items():
        other = next(_fitting(replace(roofline, hardware=hardware), memory), None)
        if other is not None and name != roofline.hardware.name:
            precision = other.shape.precision
            option = "" if precision == roofline.shape.precision else f" --precision {precision}"
            yield f"--on {name}{option} ({_memory_text(other)})"


def _fitting(roofline: Roofline, memory: KVMemory) -> Iterator[Roofline]:
    """Yield the model with its own weights and all smaller ones that fit, largest first."""
    precision = roofline.shape.precision
    while precision:
        other = replace(roofline, shape=roofline.shape.in_precision(precision))
        if _fits(other, memory):
            yield other
        precision = SMALLER_WEIGHTS[roofline.hardware.memory_kind].get(precision, "")


def _fits(roofline: Roofline, memory: KVMemory) -> bool:
    return roofline.kv_bytes() >= memory.capacity.paged_bytes


def _memory_text(roofline: Roofline) -> str:
    need = roofline.shape.memory_besides_kv(roofline.hardware.memory_kind)
    return f"needs {format_bytes(need)}, {roofline.hardware.name} has {format_bytes(roofline.hardware.memory_bytes)}"
