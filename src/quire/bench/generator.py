"""`quire bench generator`: how many streamed tokens the load generator can receive, and its delay.

The server is the fixed-delay server in a child process: it answers at once, one event a write; or at a pace, so that
the delay is measured below saturation.
"""

from __future__ import annotations

import argparse

from quire.bench.engines.fixed_delay_server import fixed_delay_server
from quire.bench.engines.http_client import HttpEngineClient, HttpTarget, probe_server
from quire.bench.figures.figure import Figure, at_least, at_most
from quire.bench.figures.table import figure_table
from quire.bench.load.event_loop import run_async
from quire.bench.load.load_test import LoadTest, Plan, Point
from quire.bench.load.patterns import ClosedLoop, StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.machine.description import describe_machine

NUM_STREAMS, NUM_TOKENS, NUM_REQUESTS = 64, 512, 256
GOAL = 20_000  # tokens a second


class _NoView:
    """Shows nothing."""

    def begin_load(self, title: str, stop: StopAfter, is_warm_up: bool) -> None: ...
    def add_result(self, result: RequestResult) -> None: ...
    def finish_load(self, engine: str, point: Point) -> None: ...
    def say(self, text: str) -> None: ...


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    at_once, paced = measure_generator(0.0), measure_generator(NUM_STREAMS / GOAL)
    conditions = paced.summary.conditions
    print(describe_machine())
    print(
        figure_table(
            [
                _rate(f"at once, {NUM_STREAMS} streams", at_once),
                _rate(f"paced at {GOAL:,} tok/s", paced, with_goal=False),
                Figure("delay of the generator at that pace, p50", conditions.generator_delay.p50 * 1e3, "ms"),
                Figure("delay of the generator at that pace, p99", conditions.generator_delay.p99 * 1e3, "ms"),
                Figure("share of a core at that pace", conditions.processor_share * 100, "%", at_most(50)),
            ]
        )
    )


def _rate(name: str, point: Point, with_goal: bool = True) -> Figure:
    note = f"{point.summary.conditions.processor_share:.0%} of a core"
    return Figure(name, point.summary.output_per_second, "tok/s", at_least(GOAL) if with_goal else None, note)


def measure_generator(gap: float) -> Point:
    """Run all streams at once, with this many seconds between two tokens of a stream."""
    lengths = {"input": "16", "output": str(NUM_TOKENS)}
    plan = Plan(lengths=lengths, loads=(ClosedLoop(NUM_STREAMS),), stop=StopAfter(NUM_REQUESTS))

    async def measure(url: str) -> Point:
        target, _ = await probe_server(HttpTarget(url))
        client = HttpEngineClient(target)
        (point,) = await LoadTest("fixed delay", client, plan, _NoView()).run()
        client.close()
        return point

    with fixed_delay_server(0.0, gap) as url:
        return run_async(measure(url))
