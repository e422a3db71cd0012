"""Statistics of a workload: lengths, arrivals, concurrency, formats, models."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from quire.advisor.workload import TraceWorkload

PERCENTILES = (50, 90, 95, 99)
WINDOW_SECONDS = (1.0, 10.0)  # windows in which arrivals are counted
MAX_CURVE_POINTS = 240
STEADY, BURSTY = 0.5, 1.5  # coefficient of variation of the gaps between arrivals; independent users have 1


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles and maximum of some values. Percentiles are interpolated, as in numpy."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Compute the distribution; of no values, all zeros."""
        ordered = sorted(values) or [0.0]
        p50, p90, p95, p99 = (percentile(ordered, percent) for percent in PERCENTILES)
        return cls(fmean(ordered), p50, p90, p95, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in ascending order."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """When requests arrived."""

    per_second: float
    variation: float  # coefficient of variation of the gaps: 0 regular, 1 independent users, above 1 bursts
    peak_per_second: float  # in the busiest second
    peak_ten_seconds: float  # requests per second in the busiest ten seconds

    @property
    def kind(self) -> str:
        """steady, independent or bursty."""
        return "steady" if self.variation < STEADY else "bursty" if self.variation > BURSTY else "independent"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests ran at the same time. `is_measured`: by a server; else simulated."""

    mean: float
    peak: int
    curve: tuple[tuple[float, int], ...]  # seconds, and the number of running requests from then on
    is_measured: bool


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """The statistics of a workload."""

    num_calls: int
    num_refused: int
    seconds: float
    has_times: bool
    prompt: Distribution  # tokens
    output: Distribution
    context: Distribution  # prompt and output together
    num_prompt: int
    num_output: int
    arrivals: ArrivalPattern
    models: dict[str, int]
    tenants: dict[str, int]
    forms: dict[str, int]  # formats of constrained answers
    num_sessions: int
    measured_hit_rate: float | None  # reported by the server of the trace
    exactness: dict[str, int]
    num_counted: int

    @property
    def structured_share(self) -> float:
        """Share of the answers that have a prescribed format."""
        return sum(self.forms.values()) / max(1, self.num_calls)


def summarize_workload(workload: TraceWorkload) -> WorkloadSummary:
    """Compute the statistics of a workload."""
    calls = workload.calls
    with_hits = [call for call in calls if call.num_cached is not None]
    queried = sum(call.num_prompt for call in with_hits)
    return WorkloadSummary(
        num_calls=len(calls),
        num_refused=workload.num_refused,
        seconds=workload.seconds,
        has_times=workload.has_times,
        prompt=Distribution.of([call.num_prompt for call in calls]),
        output=Distribution.of([call.num_output for call in calls]),
        context=Distribution.of([call.num_prompt + call.num_output for call in calls]),
        num_prompt=workload.num_prompt,
        num_output=workload.num_output,
        arrivals=_arrival_pattern([call.time for call in calls]),
        models=dict(Counter(call.model for call in calls).most_common()),
        tenants=dict(Counter(call.key.salt for call in calls).most_common()),
        forms=dict(Counter(call.form for call in calls if call.form is not None).most_common()),
        num_sessions=len({call.session for call in calls if call.session is not None}),
        measured_hit_rate=sum(call.num_cached or 0 for call in with_hits) / queried if queried else None,
        exactness=dict(workload.exactness),
        num_counted=workload.num_counted,
    )


def concurrency_of(spans: Sequence[tuple[float, float]], is_measured: bool) -> Concurrency:
    """Compute the concurrency of requests that ran from one time to another."""
    changes = sorted([(start, 1) for start, _ in spans] + [(max(start, end), -1) for start, end in spans])
    curve: list[tuple[float, int]] = []
    running = area = 0.0
    before = changes[0][0] if changes else 0.0
    for time, change in changes:
        area += running * (time - before)
        running, before = running + change, time
        curve.append((time, int(running)))
    span = (changes[-1][0] - changes[0][0]) if changes else 0.0
    peak = max((count for _, count in curve), default=0)
    return Concurrency(area / span if span else float(peak), peak, _thinned(curve), is_measured)


def measured_concurrency(workload: TraceWorkload) -> Concurrency | None:
    """Return the concurrency that the trace recorded. None: most of its requests have no duration."""
    spans = [(call.time, call.time + call.seconds) for call in workload.calls if call.seconds is not None]
    return concurrency_of(spans, is_measured=True) if len(spans) * 2 > len(workload.calls) else None


def _thinned(curve: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Reduce a curve to at most MAX_CURVE_POINTS: the highest point of each stretch."""
    stride = -(-len(curve) // MAX_CURVE_POINTS) or 1
    return tuple(max(curve[at : at + stride], key=lambda point: point[1]) for at in range(0, len(curve), stride))


def _arrival_pattern(times: Sequence[float]) -> ArrivalPattern:
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    mean = fmean(gaps) if gaps else 0.0
    one, ten = (_busiest_window(times, window) / window for window in WINDOW_SECONDS)
    return ArrivalPattern(1 / mean if mean else 0.0, pstdev(gaps) / mean if mean else 0.0, one, ten)


def _busiest_window(times: Sequence[float], window: float) -> int:
    return max((bisect_left(times, start + window) - at for at, start in enumerate(times)), default=0)
