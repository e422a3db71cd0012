"""Loads: how many requests are in flight, how many are sent, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quire.bench.load.arrivals import ArrivalProcess
from quire.bench.load.patterns import ClosedLoop, LoadPattern, OpenLoop, RecordedTimes, StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.load.run_load import run_load
from quire.bench.load.session import LoadRequest, Session, chat_message
from quire.bench.machine.clock import clock

pytestmark = pytest.mark.pure


class SlowEngine:
    """Takes a while for each request, and records how many were in flight."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.received: list[tuple[str, float]] = []  # content, and when it was due
        self.num_in_flight = self.max_in_flight = 0

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        result = RequestResult(due, sent=clock())
        self.received.append((request.messages[0]["content"], due))
        self.num_in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
        await asyncio.sleep(self.seconds)
        self.num_in_flight -= 1
        result.ended = clock()
        result.event_times = [result.ended]
        return result

    @property
    def order(self) -> list[str]:
        return [content for content, _ in self.received]


def sessions(num_turns: int = 1, spacing: float | None = None) -> Iterator[Session]:
    for number in range(10_000):
        requests = tuple(LoadRequest((chat_message("user", f"{number}.{turn}"),)) for turn in range(num_turns))
        yield Session(requests, None if spacing is None else number * spacing)


def run(engine: SlowEngine, pattern: LoadPattern, stop: StopAfter, source: Iterator[Session]) -> list[RequestResult]:
    reported: list[RequestResult] = []
    results = asyncio.run(run_load(engine, source, pattern, stop, reported.append))
    assert results == reported
    return results


def test_a_closed_loop_keeps_its_number_in_flight_and_sends_in_order():
    engine = SlowEngine()
    assert len(run(engine, ClosedLoop(3), StopAfter(10), sessions())) == 10
    assert engine.max_in_flight == 3
    assert engine.order == [f"{number}.0" for number in range(10)]


def test_a_session_sends_one_request_after_the_other():
    engine = SlowEngine()
    assert len(run(engine, ClosedLoop(2), StopAfter(7), sessions(num_turns=3))) == 7
    assert [name for name in engine.order if name.startswith("0.")] == ["0.0", "0.1", "0.2"]
    assert engine.max_in_flight == 2


def test_an_open_loop_does_not_wait_for_answers():
    engine = SlowEngine(seconds=0.2)
    results = run(engine, OpenLoop(500.0, ArrivalProcess("constant")), StopAfter(20), sessions())
    assert len(results) == 20 and engine.max_in_flight > 5


def test_the_rate_of_an_open_loop_is_of_requests_not_of_sessions():
    engine = SlowEngine(seconds=0.0)
    results = run(engine, OpenLoop(100.0, ArrivalProcess("constant")), StopAfter(12), sessions(num_turns=4))
    assert len(results) == 12
    starts = [due for name, due in engine.received if name.endswith(".0")]
    assert [round(due - starts[0], 6) for due in starts] == [0.0, 0.04, 0.08]  # four arrivals of 10 ms for each


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(100.0)], ids=str)
def test_nothing_new_is_sent_when_the_time_is_up(load):
    engine = SlowEngine(seconds=0.02)
    results = run(engine, load, StopAfter(seconds=0.2), sessions())
    assert 0 < len(results) < 100
    assert len(results) == len(engine.received) and all(each.ended for each in results)  # each was awaited


def test_recorded_sessions_begin_at_their_recorded_times():
    engine = SlowEngine(seconds=0.0)
    results = run(engine, RecordedTimes(), StopAfter(4), sessions(spacing=0.05))
    dues = [each.due for each in results]
    assert [round(due - dues[0], 6) for due in dues] == [0.0, 0.05, 0.1, 0.15]
    assert all(each.sent >= each.due for each in results)
