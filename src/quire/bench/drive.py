"""Puts a server under load. Closed: so many clients, each asks again when it is answered. Open: requests come at their
own times, whether or not those before are answered. Sessions come from one line, in order, so that everyone is asked
the same in the same order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from quire.bench.arrivals import Arrivals
from quire.bench.asks import Ask, Session
from quire.bench.heard import Heard, clock

Watch = Callable[[Heard], None]  # is told of each answer when it has ended


class Asked(Protocol):
    """Whoever answers: a server behind HTTP, or an engine in this process."""

    async def ask(self, ask: Ask, due: float) -> Heard:
        """Ask now, and hear it to the end. Never fails: what goes wrong stands in the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Closed:
    """So many at once."""

    num_clients: int

    def __str__(self) -> str:
        return f"{self.num_clients} client{'' if self.num_clients == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Open:
    """So many a second."""

    rate: float
    arrivals: Arrivals = field(default_factory=Arrivals)

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s, {self.arrivals}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """At the sessions' own times."""

    def __str__(self) -> str:
        return "as recorded"


Load = Closed | Open | Recorded


@dataclass(frozen=True, slots=True)
class Until:
    """When no new requests are sent. Those on their way are heard to the end."""

    num_requests: int | None = None
    seconds: float | None = None


class _Budget:
    """What is left to be sent."""

    def __init__(self, until: Until) -> None:
        self.began = clock()
        self._left = until.num_requests if until.num_requests is not None else 1 << 60
        self._until = self.began + until.seconds if until.seconds is not None else float("inf")

    def take(self) -> bool:
        if self._left <= 0 or clock() >= self._until:
            return False
        self._left -= 1
        return True


async def drive(server: Asked, sessions: Iterator[Session], load: Load, until: Until, watch: Watch) -> list[Heard]:
    """Every answer, in the order of their ends."""
    heard: list[Heard] = []
    budget = _Budget(until)

    async def follow(session: Session, due: float) -> bool:
        """One session; False if there was no budget for all of it."""
        for ask in session.asks:
            if not budget.take():
                return False
            answer = await server.ask(ask, due)
            heard.append(answer)
            watch(answer)
            due = clock()
        return True

    async def client() -> None:
        for session in sessions:
            if not await follow(session, clock()):
                return

    if isinstance(load, Closed):
        await asyncio.gather(*(client() for _ in range(load.num_clients)))
        return heard
    started: set[asyncio.Task[Any]] = set()
    for session, after in _scheduled(sessions, load, until):
        due = budget.began + after
        if until.seconds is not None and after >= until.seconds:
            break
        await asyncio.sleep(max(0.0, due - clock()))
        started.add(asyncio.create_task(follow(session, due)))
    await asyncio.gather(*started)
    return heard


def _scheduled(sessions: Iterator[Session], load: Open | Recorded, until: Until) -> Iterator[tuple[Session, float]]:
    """Sessions and when they begin. One of several requests takes as many arrivals, so the rate is that of requests."""
    if isinstance(load, Recorded):
        limit = until.num_requests
        yield from ((session, session.at or 0.0) for session in islice(sessions, limit))
        return
    seconds = until.seconds or load.arrivals.seconds_for(load.rate, until.num_requests or 1)
    times = load.arrivals.times(load.rate, seconds, random.Random(f"arrivals {load.rate}"))
    num_planned = 0
    for session in sessions:
        if until.num_requests is not None and num_planned >= until.num_requests:
            return
        begin, *_ = islice(times, len(session.asks))
        num_planned += len(session.asks)
        yield session, begin
