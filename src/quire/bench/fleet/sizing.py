"""Finds how many replicas a trace needs, and with which roles, by simulating its requests on fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from quire.bench.fleet.handover import KVLink
from quire.bench.fleet.replica import ReplicaSpeed
from quire.bench.fleet.simulate import FleetScenario, simulate
from quire.bench.fleet.traffic import SimulatedRequest, Traffic
from quire.gateway.balancers.contract import DEFAULT_BALANCER, all_balancers
from quire.types.transfer import Role

SIZES = (1, 2, 3, 4, 6, 8)
SEGMENT_TOKENS = 64  # prefixes are compared in segments of this many tokens
FULL = 0.95  # share of the time that a replica computes prompts, above which it is full
WORTH = 0.9  # more replicas, or roles, must reduce the factor by which the goals are missed to this share of it


@dataclass(frozen=True, slots=True)
class FleetGoals:
    """Latency goals."""

    first_token: float  # seconds: 95 % of the answers should start within this time
    token_gap: float  # seconds: 99 % of the gaps should be shorter. Prompts delay few tokens, but those for long


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The simulated latencies of the trace on a fleet of this size and with these roles."""

    num_replicas: int
    num_prefill: int  # replicas that compute prompts for the others, which then only decode; 0: all do both
    first_token_p50: float  # seconds
    first_token_p95: float
    token_gap_p50: float  # seconds between two tokens of a stream
    token_gap_p99: float
    hit_rate: float  # of prompt tokens
    busy_share: float  # of the time: how long the busiest replica computes prompts

    @property
    def roles(self) -> Mapping[str, int]:
        """Role -> replicas."""
        if not self.num_prefill:
            return {Role.BOTH.value: self.num_replicas}
        return {Role.PREFILL.value: self.num_prefill, Role.DECODE.value: self.num_replicas - self.num_prefill}

    @property
    def is_full(self) -> bool:
        """Return whether a replica computes prompts nearly all the time."""
        return self.busy_share > FULL

    def missed(self, goals: FleetGoals) -> float:
        """Return the product of the factors by which the goals are missed; 1.0: both are met."""
        return max(self.first_token_p95 / goals.first_token, 1.0) * max(self.token_gap_p99 / goals.token_gap, 1.0)


def trace_request(
    number: int, arrival: float, prompt: Sequence[int], num_output: int, salt: object
) -> SimulatedRequest:
    """Return a request of a trace. Two prompts share the whole segments before the first token that differs."""
    segments, prefix = [], hash(salt)
    for start in range(0, max(len(prompt), 1), SEGMENT_TOKENS):
        part = tuple(prompt[start : start + SEGMENT_TOKENS])
        prefix = hash((prefix, part))
        segments.append((prefix, max(len(part), 1)))
    return SimulatedRequest(number, arrival, prefix, tuple(segments), max(num_output, 1))


def prefill_counts(num_replicas: int) -> list[int]:
    """Return the numbers of prefill replicas that are simulated: none, few, a half, and all but one."""
    return [0, *sorted({each for each in (1, 2, num_replicas // 2, num_replicas - 1) if 0 < each < num_replicas})]


def size_fleet(
    requests: Sequence[SimulatedRequest], speed: ReplicaSpeed, goals: FleetGoals, link: KVLink | None = None
) -> list[FleetSize]:
    """Simulate fleets of growing size, up to one beyond the first that meets the goals, or until size stops helping.

    Without a link all replicas do both.
    """
    sizes: list[FleetSize] = []
    too_few: set[int] = set()  # numbers of prefill replicas that are too few, whatever the number of decode replicas
    best: list[float] = []  # for each size, the factor by which its best fleet misses the goals
    for count in SIZES:
        counts = [each for each in prefill_counts(count) if each == 0 or (link is not None and each not in too_few)]
        fleets = [_simulated(requests, speed, count, num_prefill, link) for num_prefill in counts]
        too_few |= {each.num_prefill for each in fleets if each.first_token_p95 > goals.first_token and each.is_full}
        sizes += fleets
        best.append(min(each.missed(goals) for each in fleets))
        if best[-2:-1] == [1.0] or (len(best) > 2 and min(best[-2:]) > WORTH * min(best[:-2])):
            break
    return sizes


def _simulated(
    requests: Sequence[SimulatedRequest], speed: ReplicaSpeed, num_replicas: int, num_prefill: int, link: KVLink | None
) -> FleetSize:
    seconds = max(requests[-1].arrival - requests[0].arrival, 1e-3)
    mean_output = sum(each.num_output for each in requests) / len(requests)
    traffic = Traffic(len(requests) / seconds, seconds, output_tokens=max(round(mean_output), 1))
    fresh = tuple(replace(each) for each in requests)  # a run writes its results into them
    used = link if num_prefill else None
    scenario = FleetScenario(num_replicas, traffic, speed, requests=fresh, num_prefill=num_prefill, link=used)
    result = simulate(scenario, all_balancers()[DEFAULT_BALANCER].make())
    end = max(each.end for each in result.requests)
    return FleetSize(
        num_replicas,
        num_prefill,
        result.first_token(0.5),
        result.first_token(0.95),
        result.token_gap(0.5),
        result.token_gap(0.99),
        result.hit_rate,
        max(result.busy_seconds) / max(end - requests[0].arrival, 1e-3),
    )


def choose_fleet(sizes: Sequence[FleetSize], goals: FleetGoals) -> FleetSize:
    """Return the smallest fleet that meets the goals; if none does, the smallest that misses them about least.

    Among fleets of one size, replicas that do both are preferred if they qualify.
    """
    least = min(each.missed(goals) for each in sizes)
    enough = 1.0 if least == 1.0 else least / WORTH
    for _, fleets in groupby(sizes, key=lambda each: each.num_replicas):
        fitting = [each for each in fleets if each.missed(goals) <= enough]
        if fitting and not fitting[0].num_prefill:
            return fitting[0]
        if fitting:
            return min(fitting, key=lambda each: (each.missed(goals), each.first_token_p95))
    raise AssertionError("one of the fleets misses the goals least")
