"""Loads: how many are on their way at once, how many in all, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quire.bench.arrivals import Arrivals
from quire.bench.asks import Ask, Session, says
from quire.bench.drive import Closed, Load, Open, Recorded, Until, drive
from quire.bench.heard import Heard, clock

pytestmark = pytest.mark.pure


class Slow:
    """Takes a while for each, and remembers who was there at once."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.asked: list[tuple[str, float]] = []  # what, and when it was due
        self.num_now = self.most = 0

    async def ask(self, ask: Ask, due: float) -> Heard:
        heard = Heard(due, sent=clock())
        self.asked.append((ask.messages[0]["content"], due))
        self.num_now += 1
        self.most = max(self.most, self.num_now)
        await asyncio.sleep(self.seconds)
        self.num_now -= 1
        heard.ended = clock()
        heard.stamps = [heard.ended]
        return heard

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.asked]


def sessions(num_turns: int = 1, spacing: float | None = None) -> Iterator[Session]:
    for number in range(10_000):
        asks = tuple(Ask((says("user", f"{number}.{turn}"),)) for turn in range(num_turns))
        yield Session(asks, None if spacing is None else number * spacing)


def driven(server: Slow, load: Load, until: Until, asked: Iterator[Session]) -> list[Heard]:
    told: list[Heard] = []
    heard = asyncio.run(drive(server, asked, load, until, told.append))
    assert heard == told
    return heard


def test_a_closed_load_has_so_many_on_their_way_and_asks_in_order():
    server = Slow()
    assert len(driven(server, Closed(3), Until(10), sessions())) == 10
    assert server.most == 3
    assert server.order == [f"{number}.0" for number in range(10)]


def test_a_session_asks_one_after_the_other():
    server = Slow()
    assert len(driven(server, Closed(2), Until(7), sessions(num_turns=3))) == 7
    assert [name for name in server.order if name.startswith("0.")] == ["0.0", "0.1", "0.2"]
    assert server.most == 2


def test_an_open_load_waits_for_nobody():
    server = Slow(seconds=0.2)
    heard = driven(server, Open(500.0, Arrivals("constant")), Until(20), sessions())
    assert len(heard) == 20 and server.most > 5


def test_the_rate_of_an_open_load_is_that_of_requests_not_of_sessions():
    server = Slow(seconds=0.0)
    heard = driven(server, Open(100.0, Arrivals("constant")), Until(12), sessions(num_turns=4))
    assert len(heard) == 12
    starts = [due for name, due in server.asked if name.endswith(".0")]
    assert [round(due - starts[0], 6) for due in starts] == [0.0, 0.04, 0.08]  # four arrivals of 10 ms for each


@pytest.mark.parametrize("load", [Closed(2), Open(100.0)], ids=str)
def test_nothing_new_is_sent_when_the_time_is_up(load):
    server = Slow(seconds=0.02)
    heard = driven(server, load, Until(seconds=0.2), sessions())
    assert 0 < len(heard) < 100  # and not all ten thousand
    assert len(heard) == len(server.asked) and all(each.ended for each in heard)  # each was heard to the end


def test_recorded_sessions_begin_at_their_own_times():
    server = Slow(seconds=0.0)
    heard = driven(server, Recorded(), Until(4), sessions(spacing=0.05))
    dues = [each.due for each in heard]
    assert [round(due - dues[0], 6) for due in dues] == [0.0, 0.05, 0.1, 0.15]
    assert all(each.sent >= each.due for each in heard)
