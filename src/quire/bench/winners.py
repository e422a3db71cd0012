"""Which engine is best in what: the table that a comparison begins with, and its one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from quire.bench.measure import Point
from quire.bench.outcome import Outcome
from quire.bench.rows import BY_KEY
from quire.bench.table import number
from quire.bench.verdict import ALIKE, MEASURES, times

HEADS = ("", "best", "", "next", "", "times")
EVEN = "alike"


class Winner(NamedTuple):
    """One row: where and what was measured, the best engine, the next, and how many times better."""

    measure: str
    best: str
    figure: str
    next: str
    next_figure: str
    ratio: str

    @property
    def name(self) -> str:
        """The engine that wins; `EVEN` if the best two cannot be told apart."""
        return EVEN if self.ratio == EVEN else self.best


def winners(outcome: Outcome) -> list[Winner]:
    """For each workload at its highest load, the winner of each measure. A single engine has none."""
    found: list[Winner] = []
    for workload in outcome.plan.workloads:
        groups = [(load, points) for name, load, points in outcome.groups() if name == workload and len(points) > 1]
        answered = [(load, points) for load, points in groups if all(each.summary.num_good for each in points.values())]
        if answered:
            load, points = answered[-1]
            found += _of_load(f"{workload}, {load}", points)
    return found


def _of_load(where: str, points: dict[str, Point]) -> Iterator[Winner]:
    for key, _, _ in MEASURES:
        row = BY_KEY[key]
        values = {name: float(row.of(point.summary) or 0.0) for name, point in points.items()}
        best, second, *_ = sorted(values, key=lambda name: values[name], reverse=row.better == "more")
        ratio = times(values[best], values[second])
        figures = [f"{number(values[name])} {row.unit}" for name in (best, second)]
        told = EVEN if ratio < ALIKE else f"{number(ratio)}×"
        yield Winner(f"{where}: {row.label}", best, figures[0], second, figures[1], told)


def answer_line(outcome: Outcome) -> str:
    """Who wins how often, in one line."""
    found = winners(outcome)
    if not found:
        return "There is nothing to compare: not every engine answered." if len(outcome.results) > 1 else ""
    counts = Counter(each.name for each in found)
    engines = sorted((result.name for result in outcome.results), key=lambda name: -counts[name])
    first, second = engines[:2]
    shares = ", ".join(f"{name} in {counts[name]}" for name in engines[1:])
    even = f"; in {counts[EVEN]} they are alike" if counts[EVEN] else ""
    if counts[first] == counts[second]:
        return f"No engine wins: of {len(found)} measures {first} is best in {counts[first]}, {shares}{even}."
    return f"{first} is best in {counts[first]} of {len(found)} measures, {shares}{even}."
