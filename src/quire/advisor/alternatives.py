"""What a model that does not fit could be run as: with smaller weights here, or as it is on a larger device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quire.advisor.figures import size
from quire.advisor.hardware import PRESETS
from quire.advisor.memory import Memory
from quire.advisor.roofline import Roofline
from quire.advisor.whatif import LESS


def alternatives(roofline: Roofline, memory: Memory) -> list[str]:
    """The options of `quire advise` with which it fits, each with what it needs and what is there."""
    return [*_smaller_weights(roofline, memory), *_larger_devices(roofline, memory)]


def _smaller_weights(roofline: Roofline, memory: Memory) -> Iterator[str]:
    smaller, precision = LESS[roofline.hardware.kind], roofline.shape.precision
    while (precision := smaller.get(precision, "")) != "":
        other = replace(roofline, shape=roofline.shape.in_precision(precision))
        if _fits(other, memory):
            yield f"--precision {precision} ({_numbers(other)})"


def _larger_devices(roofline: Roofline, memory: Memory) -> Iterator[str]:
    for name, hardware in PRESETS.items():
        other = replace(roofline, hardware=hardware)
        if hardware.kind == roofline.hardware.kind and _fits(other, memory):
            yield f"--on {name} ({_numbers(other)})"


def _fits(roofline: Roofline, memory: Memory) -> bool:
    return roofline.kv_bytes() >= memory.slots.paged_bytes


def _numbers(roofline: Roofline) -> str:
    need = roofline.shape.memory_besides_kv(roofline.hardware.kind)
    return f"needs {size(need)}, {roofline.hardware.name} has {size(roofline.hardware.memory_bytes)}"
