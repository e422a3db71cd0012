"""What a workload is like: lengths, arrivals, company, forms, models."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from quire.advisor.workload import Workload

SHARES = (50, 90, 95, 99)
WINDOW_SECONDS = (1.0, 10.0)  # in which arrivals are counted
MOST_POINTS = 240  # of a curve over time
STEADY, BURSTY = 0.5, 1.5  # of the variation between arrivals; 1 is that of independent users


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are distributed. Percentiles are interpolated as numpy does it."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """None at all is a spread of zeros."""
        ordered = sorted(values) or [0.0]
        p50, p90, p95, p99 = (percentile(ordered, share) for share in SHARES)
        return cls(fmean(ordered), p50, p90, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order."""
    at = (len(ordered) - 1) * share / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests came."""

    per_second: float
    variation: float  # of the time between two: 0 is a metronome, 1 are independent users, more are bursts
    peak_per_second: float  # in the fullest second
    peak_ten_seconds: float  # requests a second in the fullest ten seconds

    @property
    def kind(self) -> str:
        """In a word."""
        return "steady" if self.variation < STEADY else "bursty" if self.variation > BURSTY else "independent"


@dataclass(frozen=True, slots=True)
class Company:
    """How many requests ran at once. `is_measured`: by a server; else simulated."""

    mean: float
    peak: int
    curve: tuple[tuple[float, int], ...]  # seconds, and how many ran from then on
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Description:
    """A workload in numbers."""

    num_calls: int
    num_refused: int
    seconds: float
    has_times: bool
    prompt: Spread
    output: Spread
    context: Spread  # of both together
    num_prompt: int
    num_output: int
    arrivals: Arrivals
    models: dict[str, int]
    tenants: dict[str, int]
    forms: dict[str, int]  # prescribed ones
    num_sessions: int
    measured_hit_rate: float | None  # that a server told of
    exactness: dict[str, int]
    num_counted: int

    @property
    def structured_share(self) -> float:
        """Of the answers, those with a prescribed form."""
        return sum(self.forms.values()) / max(1, self.num_calls)


def describe(workload: Workload) -> Description:
    """A workload in numbers."""
    calls = workload.calls
    told = [call for call in calls if call.num_cached is not None]
    queried = sum(call.num_prompt for call in told)
    return Description(
        num_calls=len(calls),
        num_refused=workload.num_refused,
        seconds=workload.seconds,
        has_times=workload.has_times,
        prompt=Spread.of([call.num_prompt for call in calls]),
        output=Spread.of([call.num_output for call in calls]),
        context=Spread.of([call.num_prompt + call.num_output for call in calls]),
        num_prompt=workload.num_prompt,
        num_output=workload.num_output,
        arrivals=_arrivals([call.time for call in calls]),
        models=dict(Counter(call.model for call in calls).most_common()),
        tenants=dict(Counter(call.key.salt for call in calls).most_common()),
        forms=dict(Counter(call.form for call in calls if call.form is not None).most_common()),
        num_sessions=len({call.session for call in calls if call.session is not None}),
        measured_hit_rate=sum(call.num_cached or 0 for call in told) / queried if queried else None,
        exactness=dict(workload.exactness),
        num_counted=workload.num_counted,
    )


def company(spans: Sequence[tuple[float, float]], is_measured: bool) -> Company:
    """Of requests that ran from one time to another."""
    changes = sorted([(start, 1) for start, _ in spans] + [(max(start, end), -1) for start, end in spans])
    curve: list[tuple[float, int]] = []
    running = area = 0.0
    before = changes[0][0] if changes else 0.0
    for when, change in changes:
        area += running * (when - before)
        running, before = running + change, when
        curve.append((when, int(running)))
    span = (changes[-1][0] - changes[0][0]) if changes else 0.0
    peak = max((count for _, count in curve), default=0)
    return Company(area / span if span else float(peak), peak, _thinned(curve), is_measured)


def measured_company(workload: Workload) -> Company | None:
    """If a server told how long requests took."""
    spans = [(call.time, call.time + call.seconds) for call in workload.calls if call.seconds is not None]
    return company(spans, is_measured=True) if len(spans) * 2 > len(workload.calls) else None


def _thinned(curve: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Of many points, the highest of each stretch."""
    stride = -(-len(curve) // MOST_POINTS) or 1
    return tuple(max(curve[at : at + stride], key=lambda each: each[1]) for at in range(0, len(curve), stride))


def _arrivals(times: Sequence[float]) -> Arrivals:
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    mean = fmean(gaps) if gaps else 0.0
    one, ten = (_fullest(times, window) / window for window in WINDOW_SECONDS)
    return Arrivals(1 / mean if mean else 0.0, pstdev(gaps) / mean if mean else 0.0, one, ten)


def _fullest(times: Sequence[float], window: float) -> int:
    return max((bisect_left(times, start + window) - at for at, start in enumerate(times)), default=0)
