"""The load generator's figures equal the times that a server with fixed delays recorded, within two per cent."""

from __future__ import annotations

import asyncio
import json
import statistics
from typing import Any

import pytest

from quire.bench.engines.fixed_delay_server import fixed_delay_server
from quire.bench.engines.http_client import HttpEngineClient, HttpTarget
from quire.bench.load.patterns import ClosedLoop, OpenLoop
from tests.bench.load.small_plans import measure, small_plan

pytestmark = pytest.mark.e2e

FIRST, GAP, NUM_TOKENS, NUM_REQUESTS = 0.25, 0.025, 16, 10
NUM_PROBES = 1


def server_times(url: str) -> list[dict[str, Any]]:
    """When the server received each request and wrote each token, by its own clock."""

    async def get() -> bytes:
        server = HttpEngineClient(HttpTarget(url))
        _, body = await server.get("/times")
        server.close()
        return body

    return json.loads(asyncio.run(get()))


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(8.0)], ids=["closed", "open"])
def test_figures_equal_the_times_of_the_server(load):
    plan = small_plan([load], NUM_REQUESTS, str(NUM_TOKENS), num_warm_up=0)
    with fixed_delay_server(FIRST, GAP) as url:
        (point,) = measure(url, plan)
        times = server_times(url)[NUM_PROBES:]
    assert len(times) == point.summary.num_succeeded == NUM_REQUESTS
    first = [each["written"][0] - each["received"] for each in times]
    rest = [(each["written"][-1] - each["written"][0]) / (NUM_TOKENS - 1) for each in times]
    whole = [each["written"][-1] - each["received"] for each in times]
    seconds = max(each["written"][-1] for each in times) - min(each["received"] for each in times)
    assert point.summary.first_token.p50 == near(statistics.median(first))
    assert point.summary.per_token.p50 == near(statistics.median(rest))
    assert point.summary.gap.mean == near(statistics.mean(rest))
    assert point.summary.end_to_end.p50 == near(statistics.median(whole))
    assert point.summary.output_per_second == near(NUM_REQUESTS * NUM_TOKENS / seconds)
    assert point.summary.output_tokens == NUM_REQUESTS * NUM_TOKENS


def test_requests_of_an_open_load_are_sent_when_they_are_due():
    with fixed_delay_server(0.5, 0.0) as url:  # slower than the arrivals: requests overlap
        (point,) = measure(url, small_plan([OpenLoop(40.0)], 20, "1", num_warm_up=0))
        received = [each["received"] for each in server_times(url)[NUM_PROBES:]]
    due = sorted(result.due for result in point.results)
    late = [actual - expected for expected, actual in zip(due, sorted(received), strict=True)]
    assert statistics.median(late) < 0.5  # far from the 10 s that they would take one after the other
    assert due[-1] - due[0] == pytest.approx(20 / 40.0, rel=0.9)


def test_the_delay_of_the_generator_is_measured():
    with fixed_delay_server(0.05, 0.01) as url:
        (point,) = measure(url, small_plan(num_requests=4, output="8"))
    delay = point.summary.conditions.generator_delay
    assert 0 < delay.p50 <= delay.p99 <= delay.max
    assert point.summary.conditions.processor_share > 0
