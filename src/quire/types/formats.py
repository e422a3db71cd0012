"""Number formats that settings name, each declared once: settings, their help, devices and the planner read these.

Formats of weights on disk are the files of `quire.quant`. Which formats a device has is in its facts
(`quire.devices.facts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AUTO = "auto"  # the device's default


class KVFormat(NamedTuple):
    """How a KV cache stores K and V: `num_bytes` bytes for each `num_values` neighbouring values of a head."""

    name: str
    num_bytes: int
    num_values: int = 1
    help: str = ""

    @property
    def value_bytes(self) -> float:
        """Bytes of one value, with its share of the scale."""
        return self.num_bytes / self.num_values


KV_FORMATS = {
    each.name: each
    for each in (
        KVFormat("f32", 4),
        KVFormat("f16", 2),
        KVFormat("bf16", 2),
        KVFormat("q8_0", 34, 32, "on a CPU: 8 bits, and a scale for each 32 values"),
        KVFormat("f8_e4m3", 1, help="on a GPU: 8 bits"),
    )
}
ACTIVATION_FORMATS = ("f32", "f16", "bf16")
# What a device can convert matrices to when it loads them.
CONVERSIONS = {
    "fp8": "on a GPU: 8 bits, and a scale for each row",
    "plain": "on a GPU: the number format of activations",
    "q8_0": "on a CPU: 8 bits, and a scale for each 32 weights; two to three times as fast for many tokens",
}


def listed(formats: Mapping[str, str]) -> str:
    """Names of formats for a help text, each followed by its explanation if it has one."""
    return ", ".join(f"{name} ({help})" if help else name for name, help in formats.items())
