"""The part `generator`: how many streamed tokens this benchmark's own client takes, and how late it is.

The server is a stand-in in a process of its own, which answers at once, an event a write; or at a pace, so that the
client's delay is not that of a flood.
"""

from __future__ import annotations

import argparse

from quire.bench.drive import Closed, Until
from quire.bench.figure import Figure, at_least, at_most
from quire.bench.heard import Heard
from quire.bench.machine import machine
from quire.bench.measure import Measured, Plan, Point, run
from quire.bench.over_http import OverHttp, Target, reach
from quire.bench.stand_in import stand_in
from quire.bench.table import table

NUM_STREAMS, NUM_TOKENS, NUM_REQUESTS = 64, 512, 256
GOAL = 20_000  # tokens a second


class _Silent:
    """Shows nothing."""

    def begin(self, what: str, until: Until, is_warm_up: bool) -> None: ...
    def answered(self, heard: Heard) -> None: ...
    def done(self, who: str, point: Point) -> None: ...
    def say(self, text: str) -> None: ...


def main(asked: argparse.Namespace) -> None:
    """Print the table."""
    at_once, paced = measured(0.0), measured(NUM_STREAMS / GOAL)
    print(machine())
    print(
        table(
            [
                _rate(f"at once, {NUM_STREAMS} streams", at_once),
                _rate(f"paced at {GOAL:,} tok/s", paced, with_goal=False),
                Figure("its own delay at that pace, p50", paced.summary.around.own_delay.p50 * 1e3, "ms"),
                Figure("its own delay at that pace, p99", paced.summary.around.own_delay.p99 * 1e3, "ms"),
                Figure("of a core at that pace", paced.summary.around.processor_share * 100, "%", at_most(50)),
            ]
        )
    )


def _rate(name: str, point: Point, with_goal: bool = True) -> Figure:
    note = f"{point.summary.around.processor_share:.0%} of a core"
    return Figure(name, point.summary.output_per_second, "tok/s", at_least(GOAL) if with_goal else None, note)


def measured(gap: float) -> Point:
    """All streams at once, with so many seconds between two tokens of each."""
    lengths = {"input": "16", "output": str(NUM_TOKENS)}
    plan = Plan(lengths=lengths, loads=(Closed(NUM_STREAMS),), until=Until(NUM_REQUESTS))

    async def work(url: str) -> Point:
        target, _ = await reach(Target(url))
        server = OverHttp(target)
        (point,) = await Measured("stand-in", server, plan, _Silent()).run()
        server.close()
        return point

    with stand_in(0.0, gap) as url:
        return run(work(url))
