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
    here = [f"--precision {other.shape.precision} ({_numbers(other)})" for other in _fitting(roofline, memory)]
    return [*here, *_other_devices(roofline, memory)]


def _other_devices(roofline: Roofline, memory: Memory) -> Iterator[str]:
    """Devices that it fits, each with the largest weights that do."""
    for name, hardware in PRESETS.items():
        other = next(_fitting(replace(roofline, hardware=hardware), memory), None)
        if other is not None and name != roofline.hardware.name:
            precision = other.shape.precision
            option = "" if precision == roofline.shape.precision else f" --precision {precision}"
            yield f"--on {name}{option} ({_numbers(other)})"


def _fitting(roofline: Roofline, memory: Memory) -> Iterator[Roofline]:
    """With the weights as they are, and with all smaller ones that a device of this kind takes."""
    precision = roofline.shape.precision
    while precision:
        other = replace(roofline, shape=roofline.shape.in_precision(precision))
        if _fits(other, memory):
            yield other
        precision = LESS[roofline.hardware.memory_kind].get(precision, "")


def _fits(roofline: Roofline, memory: Memory) -> bool:
    return roofline.kv_bytes() >= memory.slots.paged_bytes


def _numbers(roofline: Roofline) -> str:
    need = roofline.shape.memory_besides_kv(roofline.hardware.memory_kind)
    return f"needs {size(need)}, {roofline.hardware.name} has {size(roofline.hardware.memory_bytes)}"
