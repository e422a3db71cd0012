"""The generator reports of a server with known delays what the server itself wrote down, within two per cent."""

from __future__ import annotations

import asyncio
import json
import statistics
from typing import Any

import pytest

from quire.bench.drive import Closed, Open
from quire.bench.over_http import OverHttp, Target
from quire.bench.stand_in import stand_in
from tests.bench.silent import a_plan, measured

pytestmark = pytest.mark.e2e

FIRST, GAP, NUM_TOKENS, NUM_REQUESTS = 0.25, 0.025, 16, 10
NUM_PROBES = 1


def server_times(url: str) -> list[dict[str, Any]]:
    """When the server received each request and wrote each token, by its own clock."""

    async def ask() -> bytes:
        server = OverHttp(Target(url))
        _, body = await server.get("/times")
        server.close()
        return body

    return json.loads(asyncio.run(ask()))


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("load", [Closed(2), Open(8.0)], ids=["closed", "open"])
def test_what_is_reported_is_what_the_server_did(load):
    plan = a_plan([load], NUM_REQUESTS, str(NUM_TOKENS), num_warm=0)
    with stand_in(FIRST, GAP) as url:
        (point,) = measured(url, plan)
        times = server_times(url)[NUM_PROBES:]
    assert len(times) == point.summary.num_good == NUM_REQUESTS
    first = [each["written"][0] - each["received"] for each in times]
    rest = [(each["written"][-1] - each["written"][0]) / (NUM_TOKENS - 1) for each in times]
    whole = [each["written"][-1] - each["received"] for each in times]
    seconds = max(each["written"][-1] for each in times) - min(each["received"] for each in times)
    assert point.summary.first_token.p50 == near(statistics.median(first))
    assert point.summary.per_token.p50 == near(statistics.median(rest))
    assert point.summary.gap.mean == near(statistics.mean(rest))
    assert point.summary.whole.p50 == near(statistics.median(whole))
    assert point.summary.output_per_second == near(NUM_REQUESTS * NUM_TOKENS / seconds)
    assert point.summary.output_tokens == NUM_REQUESTS * NUM_TOKENS


def test_requests_of_an_open_load_are_sent_when_they_are_due():
    with stand_in(0.5, 0.0) as url:  # slower than requests come: nobody waits for anybody
        (point,) = measured(url, a_plan([Open(40.0)], 20, "1", num_warm=0))
        received = [each["received"] for each in server_times(url)[NUM_PROBES:]]
    due = sorted(heard.due for heard in point.heard)
    late = [got - wanted for wanted, got in zip(due, sorted(received), strict=True)]
    assert statistics.median(late) < 0.5  # far from the 10 s that they would take one after the other
    assert due[-1] - due[0] == pytest.approx(20 / 40.0, rel=0.9)


def test_its_own_delay_is_measured():
    with stand_in(0.05, 0.01) as url:
        (point,) = measured(url, a_plan(num_requests=4, output="8"))
    delay = point.summary.around.own_delay
    assert 0 < delay.p50 <= delay.p99 <= delay.max
    assert point.summary.around.processor_share > 0
