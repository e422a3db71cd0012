"""One measured number beside its target."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A measurement. Targets are upper bounds."""

    name: str
    value: float
    unit: str
    target: float
    note: str = ""

    def __str__(self) -> str:
        verdict = "reached" if self.value < self.target else "MISSED"
        measured = f"{self.value:8.2f} {self.unit:<3} target < {self.target:g} {self.unit}"
        return f"{self.name:<42} {measured:<32} {verdict:<8} {self.note}"
