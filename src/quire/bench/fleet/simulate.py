"""A discrete-event simulation of a fleet: the gateway's own balancers and `Fleet`, and simulated engines.

Events: arrivals, ends of steps, arrivals of KV blocks, load reports, failures and restarts. The gateway sees a stored
or evicted segment `event_delay` later, and loads as old as their reports, as with real engines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import mean

from quire.bench.fleet.handover import Handover, KVLink
from quire.bench.fleet.prompt_queue import PromptJob
from quire.bench.fleet.replica import ReplicaSpeed, SimulatedReplica
from quire.bench.fleet.traffic import SimulatedRequest, Traffic, arrivals
from quire.gateway.balancers.contract import BalancedRequest, Balancer
from quire.gateway.fleet import Fleet
from quire.gateway.placement import RequestPlacer, count_ended, count_first_token, count_sent
from quire.gateway.prefix_sources import SourceChoice
from quire.types.transfer import Role


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a replica is down. It restarts with an empty cache."""

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
    requests: tuple[SimulatedRequest, ...] = ()  # of a trace; they replace those of the traffic
    num_prefill: int = 0  # replicas that compute prompts for the others, which then only decode; 0: all do both
    link: KVLink | None = None  # None: no KV blocks are exchanged

    def __post_init__(self) -> None:
        if self.num_prefill and (self.link is None or not 0 < self.num_prefill < self.num_replicas):
            raise ValueError(
                f"{self.num_prefill} of {self.num_replicas} replicas cannot compute prompts for the others"
            )

    def role(self, number: int) -> Role:
        """Return the role of a replica."""
        if not self.num_prefill:
            return Role.BOTH
        return Role.PREFILL if number < self.num_prefill else Role.DECODE


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The results of a simulation."""

    requests: Sequence[SimulatedRequest]
    busy_seconds: Sequence[float]  # of each replica, computing prompts
    computed_tokens: int
    num_replicated: int  # choices that computed a cached prefix again
    copied_tokens: int  # computed although another replica had them
    evicted_tokens: int  # computed again because every replica that had them had evicted them
    sent_tokens: int  # whose KV blocks went to another replica
    gaps: Sequence[tuple[float, int]]  # seconds between two tokens of a stream, and how often; shortest first

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached."""
        return hit_rate(self.requests)

    def first_token(self, quantile: float) -> float:
        """Seconds from arrival to the first token."""
        waits = sorted(each.first_token - each.arrival for each in self.requests)
        return waits[min(int(quantile * len(waits)), len(waits) - 1)]

    @property
    def num_gaps(self) -> int:
        """Gaps between two tokens of a stream."""
        return sum(times for _, times in self.gaps)

    def token_gap(self, quantile: float) -> float:
        """Seconds between two tokens of a stream; 0 if no answer has two."""
        left = quantile * self.num_gaps
        for seconds, times in self.gaps:
            left -= times
            if left < 0:
                return seconds
        return self.gaps[-1][0] if self.gaps else 0.0

    @property
    def mean_seconds(self) -> float:
        """From arrival to end, on average."""
        return mean(each.end - each.arrival for each in self.requests)

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
        self._placer = RequestPlacer(balancer)
        self._fleet = Fleet()
        self._replicas = {
            f"r{n}": SimulatedReplica(f"r{n}", scenario.speed, scenario.role(n), scenario.link)
            for n in range(scenario.num_replicas)
        }
        self._known: dict[int, dict[str, int]] = {}  # the gateway's index: segment -> replica that has it -> tokens
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._requests: list[SimulatedRequest] = []
        self._stored: set[int] = set()  # segments that any replica has ever had
        self._coming = iter(scenario.requests) if scenario.requests else arrivals(scenario.traffic)
        self._num_open = self._num_replicated = self._num_copied = self._num_evicted = self._num_sent = 0
        self._silent = set(self._replicas)  # replicas that send no reports while no request is open

    def run(self) -> FleetResult:
        """Simulate the whole load."""
        scenario, replicas = self._scenario, self._replicas.values()
        for name in self._replicas:
            self._fleet.add(name)
        for outage in scenario.outages:
            name = f"r{outage.replica}"
            self._at(outage.start, lambda now, name=name: self._fail(name, now))  # type: ignore[misc]
            self._at(outage.end, lambda now, name=name: self._restart(name))  # type: ignore[misc]
        for _ in range(scenario.traffic.num_clients or 1):
            self._arrive(0.0)
        while self._events:
            now, _, handle = heapq.heappop(self._events)
            handle(now)
        return FleetResult(
            self._requests,
            [each.busy_seconds for each in replicas],
            sum(each.computed_tokens for each in replicas),
            self._num_replicated,
            self._num_copied,
            self._num_evicted,
            self._num_sent,
            sorted(gap for each in replicas for gap in each.gaps),
        )

    def _at(self, time: float, handle: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), handle))

    # ── requests ──

    def _arrive(self, now: float) -> None:
        """Schedule the next request: at its arrival time, or now if a client sends it."""
        request, is_open = next(self._coming, None), not self._scenario.traffic.num_clients
        if request is None:
            return

        def handle(then: float) -> None:
            request.arrival = then
            self._requests.append(request)
            self._num_open += 1
            self._start_reports(then)
            self._send(request, then)
            if is_open:
                self._arrive(then)

        self._at(max(request.arrival, now), handle)

    def _send(self, request: SimulatedRequest, now: float) -> None:
        cached, num_before = dict.fromkeys(self._known.get(request.segments[0][0], ()), 0), 0
        for segment, tokens in request.segments:
            for name in self._known.get(segment, ()):
                if cached.get(name) == num_before:
                    cached[name] += tokens
            num_before += tokens
        asked = BalancedRequest(request.num_tokens, cached, expected_output=self._scenario.traffic.output_tokens)
        placement = self._placer.place(asked, self._fleet.replicas(), now)
        if placement is None:
            self._at(now + 0.1, lambda later: self._send(request, later))
            return
        choice = placement.choice
        self._num_replicated += choice.replicate is not None
        request.num_sent += 1
        request.replica = choice.replica
        count_sent(self._fleet, _attempt(request), placement, request.num_tokens, now)
        # The gateway's index counts the prefix there from now on, since the prompt was sent there.
        for segment, tokens in request.segments[:-1]:
            self._known.setdefault(segment, {})[choice.replica] = tokens
        if placement.source is None:
            self._queue(self._replicas[choice.replica], PromptJob(request, request.num_tokens), now)
        else:
            self._fetch(request, self._replicas[choice.replica], placement.source, now)

    def _queue(self, replica: SimulatedReplica, job: PromptJob, now: float) -> None:
        replica.queue.append(job)
        end = replica.cut(now)
        if end is not None:
            self._end_at(replica, end)
        self._begin(replica, now)

    # ── KV blocks ──

    def _fetch(self, request: SimulatedRequest, target: SimulatedReplica, source: SourceChoice, now: float) -> None:
        """Start a transfer: the source sends its cached blocks of the prompt, and computes the others if it is to."""
        sender, link = self._replicas[source.replica], self._scenario.link
        assert link is not None
        num_tokens, num_there = source.num_tokens, target.cache.count(request.segments)
        handover = Handover(request, sender, target, link, num_tokens, min(num_there, num_tokens))
        target.expected[request.number] = handover
        handover.send(sender.cache.count(request.segments), now)
        if source.computes:
            self._queue(sender, PromptJob(request, num_tokens, handover), now)
        else:
            self._complete(handover, now)

    def _complete(self, handover: Handover, now: float) -> None:
        """End the sending of blocks: queue the rest of the prompt when the last blocks have arrived."""

        def receive(then: float) -> None:
            if handover.is_over:
                return
            handover.is_over = True
            self._num_sent += handover.num_sent
            request, target = handover.request, handover.target
            self._show(target, request, handover.num_there, then)
            self._queue(target, target.receive(handover), then)

        self._at(max(handover.arrival, now), receive)

    # ── steps ──

    def _begin(self, replica: SimulatedReplica, now: float) -> None:
        for job in replica.admit(now):
            if job.handover is not None:
                job.handover.num_computed = job.num_left
                job.handover.send(job.num_done, now)
            else:
                job.request.num_hit = max(job.num_done - job.num_computed_elsewhere, 0)
            if not job.num_received:
                self._count_lost(job.request, replica)
        end = replica.begin(now)
        if end is not None:
            self._end_at(replica, end)

    def _end_at(self, replica: SimulatedReplica, end: float) -> None:
        turn = replica.turn
        self._at(end, lambda now: self._end_steps(replica, turn, now))

    def _end_steps(self, replica: SimulatedReplica, turn: int, now: float) -> None:
        if replica.turn != turn:
            return
        done = replica.end_steps(now)
        for request in done.ended:
            self._finish(request, now)
        for job in done.jobs:
            if job.handover is not None:
                job.handover.send(job.num_done, now)
            if job.num_left:
                continue
            self._show(replica, job.request, job.request.num_tokens, now)
            if job.handover is not None:
                self._complete(job.handover, now)
                continue
            job.request.first_token = now
            count_first_token(self._fleet, _attempt(job.request))
            if not replica.start(job, now):
                self._finish(job.request, now)
        self._begin(replica, now)

    def _finish(self, request: SimulatedRequest, now: float) -> None:
        request.end = now
        count_ended(self._fleet, _attempt(request))
        self._num_open -= 1
        if self._scenario.traffic.num_clients:
            self._arrive(now)

    # ── caches ──

    def _count_lost(self, request: SimulatedRequest, replica: SimulatedReplica) -> None:
        """Count the tokens that are computed again, by reason: another replica has them, or they were evicted."""
        others = [each for each in self._replicas.values() if each is not replica]
        for segment, tokens in request.segments:
            if segment in replica.cache or segment not in self._stored:
                self._stored.add(segment)
            elif any(segment in each.cache or each.computes(segment) for each in others):
                self._num_copied += tokens
            else:
                self._num_evicted += tokens

    def _show(self, replica: SimulatedReplica, request: SimulatedRequest, num_tokens: int, now: float) -> None:
        """Cache the first tokens of a prompt at a replica; the gateway's index is updated after `event_delay`."""
        stored, evicted = replica.store(request, num_tokens)
        tokens, life = dict(request.segments), replica.num_lives

        def see(_: float) -> None:
            if replica.num_lives == life:
                for segment in stored:
                    self._known.setdefault(segment, {})[replica.name] = tokens[segment]
                for segment in evicted:
                    self._forget(segment, replica.name)

        self._at(now + self._scenario.event_delay, see)

    def _forget(self, segment: int, name: str) -> None:
        having = self._known.get(segment, {})
        having.pop(name, None)
        if not having:
            self._known.pop(segment, None)

    # ── reports and failures ──

    def _start_reports(self, now: float) -> None:
        """Restart the reports of idle replicas, which pause while no request is open."""
        scenario = self._scenario
        for number, name in enumerate(self._replicas):
            if name in self._silent:
                self._silent.remove(name)
                if self._replicas[name].is_up:
                    self._fleet.report(name, self._replicas[name].report(now), now)
                offset = scenario.report_seconds * (number + 1) / scenario.num_replicas
                self._at(now + offset, lambda then, name=name: self._report(name, then))  # type: ignore[misc]

    def _report(self, name: str, now: float) -> None:
        if self._replicas[name].is_up:
            self._fleet.report(name, self._replicas[name].report(now), now)
        if self._num_open:
            self._at(now + self._scenario.report_seconds, lambda then: self._report(name, then))
        else:
            self._silent.add(name)

    def _fail(self, name: str, now: float) -> None:
        lost, handovers = self._replicas[name].fail()
        self._fleet.add(name, is_available=False)
        for segment in [segment for segment, having in self._known.items() if name in having]:
            self._forget(segment, name)
        for request in lost:
            count_ended(self._fleet, _attempt(request))
            self._send(request, now)
        for handover in handovers:
            self._complete(handover, now)

    def _restart(self, name: str) -> None:
        self._replicas[name].is_up = True
        self._fleet.add(name)


def _attempt(request: SimulatedRequest) -> str:
    return f"{request.number}/{request.num_sent}"


def simulate(scenario: FleetScenario, balancer: Balancer) -> FleetResult:
    """Run one scenario."""
    return FleetSimulation(scenario, balancer).run()
