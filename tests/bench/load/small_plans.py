"""A view that records messages, and a plan that is over soon."""

from __future__ import annotations

from collections.abc import Sequence

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget, probe_server
from quire.bench.load.event_loop import run_async
from quire.bench.load.load_test import LoadTest, Plan, Point
from quire.bench.load.patterns import ClosedLoop, LoadPattern, StopAfter
from quire.bench.load.request_result import RequestResult


class RecordingView:
    """Shows nothing and keeps all messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def begin_load(self, title: str, stop: StopAfter, is_warm_up: bool) -> None: ...

    def add_result(self, result: RequestResult) -> None: ...

    def finish_load(self, engine: str, point: Point) -> None: ...

    def say(self, text: str) -> None:
        self.messages.append(text)


def small_plan(
    loads: Sequence[LoadPattern] = (ClosedLoop(2),), num_requests: int = 4, output: str = "4", **options
) -> Plan:
    lengths = {"input": "8", "output": output}
    return Plan(lengths=lengths, loads=tuple(loads), stop=StopAfter(num_requests), **options)


def measure(url: str, plan: Plan) -> list[Point]:
    """Run the plan against a server."""

    async def work() -> list[Point]:
        target, _ = await probe_server(HttpTarget(url))
        client = HttpEngineClient(target)
        try:
            return await LoadTest("it", client, plan, RecordingView()).run()
        finally:
            client.close()

    return run_async(work())
