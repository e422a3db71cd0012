"""One server under all loads of a plan, one after the other.

Every load has prompts of its own: what the one before left in the server's cache helps it in nothing. A warm-up before
each has others again, and is not counted. All of them follow from the seed, so every server gets the same.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from quire.bench import footprint, own_delay
from quire.bench.asks import Session, Workload
from quire.bench.choose import choose
from quire.bench.drive import Asked, Closed, Load, Until, drive
from quire.bench.heard import Heard
from quire.bench.summary import Around, Limits, Spread, Summary, summarize

Answer = TypeVar("Answer")
MAX_WARM = 16  # requests, if nobody says how many
PLAIN = "unique:input=32,output=8"  # before a recorded workload, which is not to be sent twice


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, of whichever server."""

    workloads: tuple[str, ...] = ("unique",)  # as `choose` reads them
    lengths: dict[str, str] = field(default_factory=dict)
    loads: tuple[Load, ...] = (Closed(1),)
    until: Until = field(default_factory=lambda: Until(num_requests=64))
    num_warm: int | None = None
    seed: int = 0
    limits: Limits | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One load of one workload: the figures, and the answers that they are made of."""

    workload: str
    load: Load
    summary: Summary
    heard: tuple[Heard, ...]


class View(Protocol):
    """Shows how far it is."""

    def begin(self, what: str, until: Until, is_warm_up: bool) -> None:
        """A load begins."""
        ...

    def answered(self, heard: Heard) -> None:
        """An answer of it has ended."""
        ...

    def done(self, who: str, point: Point) -> None:
        """It has been measured."""
        ...

    def say(self, text: str) -> None:
        """Something to know."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """Who is measured, and who watches."""

    who: str
    server: Asked
    plan: Plan
    view: View
    process: int | None = None  # the server's, if it is known: its memory is watched

    async def run(self) -> list[Point]:
        """All points."""
        points = []
        for spelled in self.plan.workloads:
            for index, load in enumerate(self.plan.loads):
                points.append(await self._point(spelled, load, f"{self.plan.seed} {spelled} {index}"))
                self.view.done(self.who, points[-1])
        return points

    async def _point(self, spelled: str, load: Load, key: str) -> Point:
        plan, workload, title = self.plan, choose(spelled, self.plan.lengths), f"{self.who}, {spelled}, {load}"
        async with own_delay.watched() as delay, footprint.watched(self.process) as memory:
            await self._warm_up(spelled, load, f"warm {key}")
            self.view.begin(title, plan.until, False)
            delay.start_over()
            heard = await drive(self.server, _sessions(workload, key), load, plan.until, self.view.answered)
            share = 0.0 if self.process == os.getpid() else delay.processor_share  # then it is the engine's too
        around = Around(Spread.of(delay.delays), share, memory.memory_bytes, memory.gpu_bytes, plan.price_per_hour)
        return Point(spelled, load, summarize(str(load), heard, plan.limits, around), tuple(heard))

    async def _warm_up(self, spelled: str, load: Load, key: str) -> None:
        num_clients = load.num_clients if isinstance(load, Closed) else MAX_WARM
        num_warm = self.plan.num_warm
        until = Until(min(num_clients, MAX_WARM) if num_warm is None else num_warm)
        workload = choose(PLAIN if spelled.startswith("trace") else spelled, self.plan.lengths)
        self.view.begin(f"{self.who}, {spelled}, {load}", until, True)
        await drive(self.server, _sessions(workload, key), Closed(num_clients), until, self.view.answered)


def _sessions(workload: Workload, key: str) -> Iterator[Session]:
    return workload.sessions(random.Random(key))


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run it on the fastest event loop that there is. Being told to end is as Ctrl-C: servers that it started end."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(_until_told(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _until_told(work: Coroutine[Any, Any, Answer]) -> Answer:
    task = asyncio.ensure_future(work)

    def told() -> None:
        if not task.cancelling():  # who is told twice still ends in order
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told)
    return await task
