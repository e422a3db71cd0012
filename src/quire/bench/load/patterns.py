"""Load patterns: how many requests are in flight or how fast they arrive, and when sending stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.bench.load.arrivals import ArrivalProcess


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of clients, each of which sends its next request when the last one is answered."""

    num_clients: int

    def __str__(self) -> str:
        return f"{self.num_clients} client{'' if self.num_clients == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at a rate, whether or not earlier ones are answered."""

    rate: float  # requests a second
    arrivals: ArrivalProcess = field(default_factory=ArrivalProcess)

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s, {self.arrivals}"


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """Sessions start at the times that they were recorded with."""

    def __str__(self) -> str:
        return "as recorded"


LoadPattern = ClosedLoop | OpenLoop | RecordedTimes


@dataclass(frozen=True, slots=True)
class StopAfter:
    """When to stop sending requests. Those in flight are still awaited. None: no limit."""

    num_requests: int | None = None
    seconds: float | None = None
