"""Functions that a test runs in a child process."""

from __future__ import annotations

from quire.bench.accuracy.cpu_accuracy import Divergence


def echo(value: Divergence, weight: float) -> tuple[Divergence, float]:
    assert isinstance(value, Divergence)
    return value, weight


async def repeat(number: int) -> list[int]:
    return [number] * number


def fail() -> int:
    raise RuntimeError("expected failure")
