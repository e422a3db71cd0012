"""Parts of a benchmark that a test runs in another process."""

from __future__ import annotations

from quire.bench.accuracy import Divergence


def echo(value: Divergence, weight: float) -> tuple[Divergence, float]:
    assert isinstance(value, Divergence)
    return value, weight


async def repeated(number: int) -> list[int]:
    return [number] * number


def fails() -> int:
    raise RuntimeError("as it should")
