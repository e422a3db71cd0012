"""A discrete-event simulation of a fleet: the balancers and the `Fleet` of the gateway, simulated engines.

Events: arrivals, first tokens, ends, load reports, failures and restarts. The gateway sees a stored or evicted segment
`event_delay` later, and loads as old as their reports, as with real engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import mean

from quire.bench.fleet.replica import ReplicaSpeed, SimulatedReplica
from quire.bench.fleet.traffic import SimulatedRequest, Traffic, arrivals
from quire.gateway.balancers.contract import BalancedRequest, Balancer
from quire.gateway.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica is down for a while, and comes back with an empty cache."""

    replica: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class FleetScenario:
    """A fleet and its load."""

    num_replicas: int
    traffic: Traffic
    speed: ReplicaSpeed = field(default_factory=ReplicaSpeed)
    outages: tuple[Outage, ...] = ()
    report_seconds: float = 0.5
    event_delay: float = 0.02


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What a simulation measured."""

    requests: Sequence[SimulatedRequest]
    busy_seconds: Sequence[float]  # of each replica, computing prompts
    computed_tokens: int
    num_replicated: int  # choices that computed a cached prefix again

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached."""
        return hit_rate(self.requests)

    def first_token(self, quantile: float) -> float:
        """Seconds from arrival to the first token."""
        waits = sorted(each.first_token - each.arrival for each in self.requests)
        return waits[min(int(quantile * len(waits)), len(waits) - 1)]

    @property
    def imbalance(self) -> float:
        """The busiest replica's prompt time, relative to the mean."""
        return max(self.busy_seconds) / max(mean(self.busy_seconds), 1e-9)


def hit_rate(requests: Sequence[SimulatedRequest]) -> float:
    """Share of the requests' prompt tokens that were cached."""
    return sum(each.num_hit for each in requests) / max(sum(each.num_tokens for each in requests), 1)


class FleetSimulation:
    """One run. `run` returns when every request has ended."""

    def __init__(self, scenario: FleetScenario, balancer: Balancer) -> None:
        self._scenario = scenario
        self._balancer = balancer
        self._fleet = Fleet()
        self._replicas = {f"r{n}": SimulatedReplica(f"r{n}", scenario.speed) for n in range(scenario.num_replicas)}
        self._known: dict[int, dict[str, int]] = {}  # segment -> replicas that have it, as the gateway knows; tokens
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._requests: list[SimulatedRequest] = []
        self._num_open = self._num_replicated = 0
        self._is_over = False

    def run(self) -> FleetResult:
        """Simulate the whole load."""
        scenario = self._scenario
        for number, name in enumerate(self._replicas):
            self._fleet.add(name)
            offset = scenario.report_seconds * number / scenario.num_replicas
            self._at(offset, lambda now, name=name: self._report(name, now))  # type: ignore[misc]
        for outage in scenario.outages:
            name = f"r{outage.replica}"
            self._at(outage.start, lambda now, name=name: self._fail(name, now))  # type: ignore[misc]
            self._at(outage.end, lambda now, name=name: self._restart(name))  # type: ignore[misc]
        coming = arrivals(scenario.traffic)
        self._arrive(next(coming, None), coming)
        while self._events:
            now, _, handle = heapq.heappop(self._events)
            handle(now)
        busy = [each.busy_seconds for each in self._replicas.values()]
        computed = sum(each.computed_tokens for each in self._replicas.values())
        return FleetResult(self._requests, busy, computed, self._num_replicated)

    def _at(self, time: float, handle: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), handle))

    def _arrive(self, request: SimulatedRequest | None, coming: object) -> None:
        if request is None:
            self._is_over = True
            return

        def handle(now: float) -> None:
            self._requests.append(request)
            self._num_open += 1
            self._send(request, now)
            self._arrive(next(coming, None), coming)  # type: ignore[call-overload]

        self._at(request.arrival, handle)

    def _send(self, request: SimulatedRequest, now: float) -> None:
        cached: dict[str, int] = {}
        for position, (segment, tokens) in enumerate(request.segments):
            having = self._known.get(segment, {})
            cached = {
                name: cached.get(name, 0) + tokens for name in having if position == 0 or name in cached
            } or cached
            if not having:
                break
        asked = BalancedRequest(request.num_tokens, cached, expected_output=self._scenario.traffic.output_tokens)
        choice = self._balancer.choose(asked, self._fleet.replicas(), now)
        if choice is None:
            self._at(now + 0.1, lambda later: self._send(request, later))
            return
        self._num_replicated += choice.replicate is not None
        request.num_sent += 1
        request.replica = choice.replica
        self._fleet.sent(f"{request.number}/{request.num_sent}", choice, request.num_tokens, now)
        replica = self._replicas[choice.replica]
        replica.queue.append(request)
        # The gateway expects the prefix there from now on: its index counts prompts on their way.
        for segment, tokens in request.segments[:1]:
            self._known.setdefault(segment, {})[choice.replica] = tokens
        self._begin(replica, now)

    def _begin(self, replica: SimulatedReplica, now: float) -> None:
        begun = replica.begin(now)
        if begun is not None:
            life = replica.num_lives
            self._at(begun[1], lambda then: self._start(begun[0], replica, life, then))

    def _start(self, request: SimulatedRequest, replica: SimulatedReplica, life: int, now: float) -> None:
        if replica.num_lives != life:
            return
        request.first_token = now
        self._fleet.answered(f"{request.number}/{request.num_sent}")
        seconds, stored, evicted = replica.start(request)
        self._begin(replica, now)
        seen_at = now + self._scenario.event_delay
        tokens = dict(request.segments)

        def see(_: float) -> None:
            if replica.num_lives == life:
                for segment in stored:
                    self._known.setdefault(segment, {})[replica.name] = tokens[segment]
                for segment in evicted:
                    self._forget(segment, replica.name)

        self._at(seen_at, see)
        self._at(now + seconds, lambda then: self._finish(request, replica, life, then))

    def _finish(self, request: SimulatedRequest, replica: SimulatedReplica, life: int, now: float) -> None:
        if replica.num_lives == life:
            request.end = now
            del replica.running[request.number]
            self._fleet.ended(f"{request.number}/{request.num_sent}")
            self._num_open -= 1

    def _forget(self, segment: int, name: str) -> None:
        having = self._known.get(segment, {})
        having.pop(name, None)
        if not having:
            self._known.pop(segment, None)

    def _report(self, name: str, now: float) -> None:
        if self._replicas[name].is_up:
            self._fleet.report(name, self._replicas[name].report(now), now)
        if not self._is_over or self._num_open:
            self._at(now + self._scenario.report_seconds, lambda then: self._report(name, then))

    def _fail(self, name: str, now: float) -> None:
        lost = self._replicas[name].fail()
        self._fleet.add(name, is_available=False)
        for segment in [segment for segment, having in self._known.items() if name in having]:
            self._forget(segment, name)
        for request in lost:
            self._fleet.ended(f"{request.number}/{request.num_sent}")
            self._send(request, now)

    def _restart(self, name: str) -> None:
        self._replicas[name].is_up = True
        self._fleet.add(name)


def simulate(scenario: FleetScenario, balancer: Balancer) -> FleetResult:
    """Run one scenario."""
    return FleetSimulation(scenario, balancer).run()
