"""The results of a benchmark: each engine's points, the plan, and the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from quire.bench.figures.load_metrics import LOAD_METRICS, LoadMetric
from quire.bench.figures.table import format_number
from quire.bench.load.load_test import Plan, Point
from quire.bench.load.patterns import LoadPattern
from quire.bench.machine.description import describe_machine

PointsByEngine = dict[str, Point]


@dataclass(frozen=True, slots=True)
class EngineResult:
    """All points of one engine."""

    name: str
    source: str  # its URL, or the command that started it
    model: str
    points: tuple[Point, ...]
    start_seconds: float | None = None  # to the first token of an answer; None: it was already running
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchmarkResults:
    """All engines under one plan."""

    plan: Plan
    engines: tuple[EngineResult, ...]
    date: str  # in ISO format
    machine: str
    load_before: float  # the machine's one-minute load average before the benchmark

    @classmethod
    def of(cls, plan: Plan, engines: Sequence[EngineResult], load_before: float) -> BenchmarkResults:
        """Add the current date and this machine."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(plan, tuple(engines), now, describe_machine(), load_before)

    def groups(self) -> Iterator[tuple[str, LoadPattern, PointsByEngine]]:
        """Yield for each workload and load the points of the engines that have one."""
        for workload in self.plan.workloads:
            for load in self.plan.loads:
                points = {
                    engine.name: point
                    for engine in self.engines
                    for point in engine.points
                    if (point.workload, point.load) == (workload, load)
                }
                yield workload, load, points

    def highest_load(self, workload: str) -> tuple[LoadPattern, PointsByEngine] | None:
        """Return the workload's last load at which every engine answered. None: there is none."""
        groups = [(load, points) for name, load, points in self.groups() if name == workload]
        complete = [group for group in groups if all(point.summary.num_succeeded for point in group[1].values())]
        return complete[-1] if complete else None


def comparison_table(points: PointsByEngine) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: a row a metric, a column an engine, then ratios to the first engine."""
    names = list(points)
    heads = ["", *names, *(f"{name} / {names[0]}" for name in names[1:])]
    rows = []
    for metric in LOAD_METRICS:
        if all(metric.value(point.summary) is None for point in points.values()):
            continue
        cells = [metric.format(points[name].summary) for name in names]
        rows.append([metric.label, *cells, *(_ratio(metric, points[names[0]], points[name]) for name in names[1:])])
    return heads, rows


def _ratio(metric: LoadMetric, first: Point, other: Point) -> str:
    value, base = metric.value(other.summary), metric.value(first.summary)
    return f"{format_number(value / base)} ×" if metric.better and value is not None and base else ""
