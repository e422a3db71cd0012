"""Which engine is best in which metric: the table and the sentence that a comparison begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from quire.bench.figures.conclusion import COMPARED_METRICS, EQUAL_RATIO
from quire.bench.figures.load_metrics import METRIC_BY_KEY
from quire.bench.figures.results import BenchmarkResults, PointsByEngine
from quire.bench.figures.table import format_number
from quire.report.ranking import top_two

WINNER_HEADS = ("", "best", "", "next", "", "times")
EQUAL = "alike"


class MetricWinner(NamedTuple):
    """A row of the table: a metric under a load, the best engine, the next, and their ratio."""

    metric: str
    best: str
    figure: str
    next: str
    next_figure: str
    ratio: str

    @property
    def name(self) -> str:
        """The winning engine; `EQUAL` if the difference between the best two is too small."""
        return EQUAL if self.ratio == EQUAL else self.best


def metric_winners(results: BenchmarkResults) -> list[MetricWinner]:
    """Return the winner of each metric, for each workload at its highest load. A single engine has none."""
    if len(results.engines) < 2:
        return []
    rows: list[MetricWinner] = []
    for workload in results.plan.workloads:
        if group := results.highest_load(workload):
            load, points = group
            rows += _winners_at(f"{workload}, {load}", points)
    return rows


def _winners_at(load: str, points: PointsByEngine) -> Iterator[MetricWinner]:
    for key, _, _ in COMPARED_METRICS:
        metric = METRIC_BY_KEY[key]
        values = {name: float(metric.value(point.summary) or 0.0) for name, point in points.items()}
        best, second, ratio = top_two(values, is_more_better=metric.better == "more")
        if second is None:
            continue
        figures = [f"{format_number(values[name])} {metric.unit}" for name in (best, second)]
        text = EQUAL if ratio < EQUAL_RATIO else f"{format_number(ratio)}×"
        yield MetricWinner(f"{load}: {metric.label}", best, figures[0], second, figures[1], text)


def winner_sentence(results: BenchmarkResults) -> str:
    """Return how many metrics each engine wins, in one line; empty for a single engine."""
    winners = metric_winners(results)
    if not winners:
        return "There is nothing to compare: not every engine answered." if len(results.engines) > 1 else ""
    counts = Counter(winner.name for winner in winners)
    engines = sorted((engine.name for engine in results.engines), key=lambda name: -counts[name])
    first, second = engines[:2]
    others = ", ".join(f"{name} in {counts[name]}" for name in engines[1:])
    equal = f"; in {counts[EQUAL]} they are alike" if counts[EQUAL] else ""
    if counts[first] == counts[second]:
        return f"No engine wins: of {len(winners)} measures {first} is best in {counts[first]}, {others}{equal}."
    return f"{first} is best in {counts[first]} of {len(winners)} measures, {others}{equal}."
