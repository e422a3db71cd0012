"""Put an engine under load. Sessions are taken from one iterator in order, so every engine gets the same requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol

from quire.bench.load.patterns import ClosedLoop, LoadPattern, OpenLoop, RecordedTimes, StopAfter
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest, Session
from quire.bench.machine.clock import clock

OnResult = Callable[[RequestResult], None]  # called for each request when it has ended


class EngineClient(Protocol):
    """Sends requests to an engine: over HTTP, or in this process."""

    async def send(self, request: LoadRequest, due: float) -> RequestResult:
        """Send it now and wait for the whole answer. Never raises: errors are in the result."""
        ...


class _Budget:
    """How many more requests may be sent, and until when."""

    def __init__(self, stop: StopAfter) -> None:
        self.began = clock()
        self._num_left = stop.num_requests if stop.num_requests is not None else 1 << 60
        self._deadline = self.began + stop.seconds if stop.seconds is not None else float("inf")

    def take(self) -> bool:
        if self._num_left <= 0 or clock() >= self._deadline:
            return False
        self._num_left -= 1
        return True


async def run_load(
    client: EngineClient, sessions: Iterator[Session], pattern: LoadPattern, stop: StopAfter, on_result: OnResult
) -> list[RequestResult]:
    """Send the sessions and return all results in the order in which they ended."""
    results: list[RequestResult] = []
    budget = _Budget(stop)

    async def run_session(session: Session, due: float) -> bool:
        """Return False if the budget ran out before the session's end."""
        for request in session.requests:
            if not budget.take():
                return False
            result = await client.send(request, due)
            results.append(result)
            on_result(result)
            due = clock()
        return True

    async def run_client() -> None:
        for session in sessions:
            if not await run_session(session, clock()):
                return

    if isinstance(pattern, ClosedLoop):
        await asyncio.gather(*(run_client() for _ in range(pattern.num_clients)))
        return results
    tasks: set[asyncio.Task[Any]] = set()
    for session, offset in _start_times(sessions, pattern, stop):
        due = budget.began + offset
        if stop.seconds is not None and offset >= stop.seconds:
            break
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.add(asyncio.create_task(run_session(session, due)))
    await asyncio.gather(*tasks)
    return results


def _start_times(
    sessions: Iterator[Session], pattern: OpenLoop | RecordedTimes, stop: StopAfter
) -> Iterator[tuple[Session, float]]:
    """Yield sessions with their start in seconds. A session of n requests takes n arrivals: the rate is of requests."""
    if isinstance(pattern, RecordedTimes):
        yield from ((session, session.start or 0.0) for session in islice(sessions, stop.num_requests))
        return
    seconds = stop.seconds or pattern.arrivals.seconds_for(pattern.rate, stop.num_requests or 1)
    times = pattern.arrivals.times(pattern.rate, seconds, random.Random(f"arrivals {pattern.rate}"))
    num_planned = 0
    for session in sessions:
        if stop.num_requests is not None and num_planned >= stop.num_requests:
            return
        start, *_ = islice(times, len(session.requests))
        num_planned += len(session.requests)
        yield session, start
