"""One measured number beside its target, if it has one."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A measurement. A target is an upper bound."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    def __str__(self) -> str:
        measured = f"{self.value:9.2f} {self.unit}"
        if self.target is not None:
            verdict = "reached" if self.value < self.target else "MISSED"
            measured += f"  target < {self.target:g} {self.unit}, {verdict}"
        return f"{self.name:<48} {measured:<40} {self.note}".rstrip()
