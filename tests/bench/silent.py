"""A view that nobody looks at, and a plan that is over soon."""

from __future__ import annotations

from collections.abc import Sequence

from quire.bench.drive import Closed, Load, Until
from quire.bench.heard import Heard
from quire.bench.measure import Measured, Plan, Point, run
from quire.bench.over_http import OverHttp, Target, reach


class Silent:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, what: str, until: Until, is_warm_up: bool) -> None: ...

    def answered(self, heard: Heard) -> None: ...

    def done(self, who: str, point: Point) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


def a_plan(loads: Sequence[Load] = (Closed(2),), num_requests: int = 4, output: str = "4", **more) -> Plan:
    lengths = {"input": "8", "output": output}
    return Plan(lengths=lengths, loads=tuple(loads), until=Until(num_requests), **more)


def measured(url: str, plan: Plan) -> list[Point]:
    """What the generator reports of a server."""

    async def work() -> list[Point]:
        target, _ = await reach(Target(url))
        server = OverHttp(target)
        try:
            return await Measured("it", server, plan, Silent()).run()
        finally:
            server.close()

    return run(work())
