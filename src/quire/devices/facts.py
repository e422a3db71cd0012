"""Facts of a device: its memory and its number formats. Planning, checks and help texts read them here.

The folder of a device declares its FACTS in `__init__.py`, which imports neither torch nor numpy, so that facts cost no
import time. `Device.facts()` adds what is known once the device is open: the size of its memory.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from quire.types.errors import QuireError
from quire.types.expert_memory import expert_bytes_on_host
from quire.types.formats import AUTO, KV_FORMATS
from quire.types.setting import BadSetting


class DeviceUnavailable(QuireError):
    """There is no such device, or this machine cannot run it."""

    code = "device_unavailable"


class MemoryKind(StrEnum):
    """The memory that a device computes in."""

    HOST = "host"  # the machine's, shared with other programs: the KV cache gets a bounded part of it
    OWN = "own"  # the device's: a program lowered with 0 KV blocks takes as many as fit


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device. Sizes are None unless the device is open and reports them."""

    kind: MemoryKind
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device has. Static, except for the sizes of its memory and which KV format is its default."""

    name: str
    memory: DeviceMemory
    kv_formats: tuple[str, ...]  # the default first
    weight_formats: Mapping[str, str]  # format in a file -> format in the device's memory, unless converted
    stack_formats: Mapping[str, str] = field(default_factory=dict)  # of experts' matrices, where that differs
    conversions: tuple[str, ...] = ()  # values of `quantize`: formats that it can convert matrices to when loading
    fused_ops: frozenset[str] = frozenset()  # that it has kernels for, whatever their attributes (graph/passes/fuse.py)
    plan: str | None = None  # the module whose PLAN says how large its buffers of a step are
    reads_sources: bool = False  # it runs models with an encoder and a decoder (`Limits.num_source_blocks`)
    frees_windows: bool = False  # layers with a window can have block tables of their own (`Limits.windows`)
    steps_in_flight: int = 1  # the most that its programs compute at once
    packages: tuple[str, ...] = ()  # Python packages that it needs beside Quire's own
    driver: Path | None = None  # exists where its hardware and driver are; None: every machine has it
    moves_blocks: bool = False  # its programs copy KV blocks to and from other engines (`MovesBlocks`)
    state_grain: int = 1  # it can store a state inside a step after tokens whose number in the text is a multiple of it

    @property
    def has_own_memory(self) -> bool:
        """Does it compute in its own memory, rather than the host's?"""
        return self.memory.kind is MemoryKind.OWN

    @property
    def is_present(self) -> bool:
        """Are its hardware, driver and packages on this machine? Imports nothing."""
        has_driver = self.driver is None or self.driver.exists()
        return has_driver and all(find_spec(package) is not None for package in self.packages)

    def kv_format(self, name: str) -> str:
        """Resolve a value of the setting kv_dtype. A format that the device does not have is refused."""
        if name == AUTO:
            return self.kv_formats[0]
        self._check_kv_format(name)
        return name

    def smaller_kv_format(self, name: str) -> str | None:
        """Return the largest KV format smaller than this one; of equal size, the device's default."""
        sizes = {each: KV_FORMATS[each].value_bytes for each in self.kv_formats}
        smaller = [each for each in self.kv_formats if sizes[each] < KV_FORMATS[name].value_bytes]
        return max(smaller, key=lambda each: sizes[each], default=None)

    def check(self, kv_format: str, weight_formats: Mapping[str, str], conversion: str | None = None) -> None:
        """Refuse what this device does not have. `weight_formats`: name of a weight -> its format in the file."""
        self._check_kv_format(kv_format)
        for weight, format in weight_formats.items():
            if format not in self.weight_formats:
                raise DeviceUnavailable(
                    f"The weight {weight} is in the format {format!r}, which the device {self.name!r} does not have. "
                    f"It has {', '.join(sorted(self.weight_formats))}."
                )
        if conversion is not None and conversion not in self.conversions:
            others = [each for each in available() if conversion in device_facts(each).conversions]
            has = f"it has {', '.join(self.conversions)}" if self.conversions else "it takes weights as they are"
            where = f"Run on {' or '.join(others)}" if others else "Leave it out"
            raise BadSetting(
                f"quantize is {conversion!r}, which the device {self.name!r} does not have: {has}. {where}, or get the "
                "model in a smaller format, such as a GGUF file.",
                field="quantize",
            )

    def expert_bytes_on_host(self, value: str) -> int | None:
        """Resolve a value of the setting experts_on_host. A device that computes in host memory has no use for it."""
        num_bytes = expert_bytes_on_host(value)
        if self.has_own_memory or not num_bytes:
            return num_bytes if self.has_own_memory else 0
        raise BadSetting(
            f"experts_on_host is {value!r}, and the device {self.name!r} computes in host memory: all experts are "
            "there. Leave it out.",
            field="experts_on_host",
        )

    def checkpoint_grain(self, deterministic: bool) -> int:
        """Return the multiple of tokens after which states are stored. In deterministic mode it is any token."""
        return 1 if deterministic else self.state_grain

    def stack_format(self, name: str) -> str:
        """Return the format in the device's memory of experts' matrices that have this format in a file."""
        return self.stack_formats.get(name, self.weight_formats.get(name, name))

    def _check_kv_format(self, name: str) -> None:
        if name in self.kv_formats:
            return
        size = KV_FORMATS[name].value_bytes if name in KV_FORMATS else 0.0
        nearest = min(self.kv_formats, key=lambda each: abs(KV_FORMATS[each].value_bytes - size))
        raise BadSetting(
            f"kv_dtype is {name!r}, which the device {self.name!r} does not have. It has {', '.join(self.kv_formats)}; "
            f"the nearest in size is {nearest}.",
            field="kv_dtype",
        )


def available() -> tuple[str, ...]:
    """Names of the installed devices. Opening one shows whether it runs on this machine."""
    package = importlib.import_module("quire.devices")
    found = pkgutil.iter_modules(package.__path__)
    return tuple(sorted(module.name for module in found if module.ispkg and not module.name.startswith("_")))


def device_facts(name: str) -> DeviceFacts:
    """Return the facts of a device, or of the one that `auto` means, without opening it."""
    name = resolve_device(name)
    if name not in available():
        raise DeviceUnavailable(f"There is no device {name!r}. Installed are: {', '.join(available()) or 'none'}.")
    facts = _declared(name)
    if facts is None:
        raise DeviceUnavailable(f"The device {name!r} cannot run models yet: it declares no facts.")
    return facts


def resolve_device(name: str) -> str:
    """Resolve `auto`: a present device with its own memory, else the host's device. Other names are returned."""
    if name != AUTO:
        return name
    present = [facts for facts in map(_declared, available()) if facts is not None and facts.is_present]
    return max(present, key=lambda facts: facts.has_own_memory).name


def host_device() -> str:
    """Return the device that computes in the host's memory. Every installation has one."""
    return next(name for name in available() if (facts := _declared(name)) is not None and not facts.has_own_memory)


def _declared(name: str) -> DeviceFacts | None:
    facts = getattr(importlib.import_module(f"quire.devices.{name}"), "FACTS", None)
    return facts if isinstance(facts, DeviceFacts) else None
