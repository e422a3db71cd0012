"""The main of a child process whose CPU is the stand-in, so that these tests need no compiler."""

from __future__ import annotations

from quire.devices import cpu
from quire.engine import process
from tests.runner.stand_in import InterpreterDevice


def main(inward: str, outward: str) -> None:
    cpu.DEVICE = InterpreterDevice()  # type: ignore[attr-defined]
    process.main(inward, outward)


def dies(inward: str, outward: str) -> None:
    raise SystemExit(7)
