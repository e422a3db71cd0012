"""The best option for each metric: among compared engines, or among the simulated changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from quire.advisor.comparison import TIE_RATIO, Comparison
from quire.advisor.number_format import format_seconds
from quire.advisor.what_if import MIN_GAIN, WhatIf
from quire.report.ranking import top_two

AS_PLANNED = "as planned"
TIE = "tie"


class BestOption(NamedTuple):
    """One row of the table."""

    measure: str
    best: str
    figure: str
    other: str  # the second best engine, or the plan without changes
    other_figure: str


class ComparedMetric(NamedTuple):
    """A metric of the table. An empty key: it is not known there."""

    label: str
    simulated_key: str  # in `key_metrics`
    measured_key: str  # field of `ComparedEngine`
    is_more_better: bool = False
    format: Callable[[float], str] = format_seconds


def _format_tokens(value: float) -> str:
    return f"{value:,.0f} tok/s"


HEADINGS = {True: ("", "best", "", "next", ""), False: ("", "best", "", "instead of", "")}  # by: is it measured?
METRICS = (
    ComparedMetric("output", "output_tokens_per_second", "output_rate", True, _format_tokens),
    ComparedMetric("first token, p50", "first_token_p50", "first_token_p50"),
    ComparedMetric("first token, p95", "first_token_p95", ""),
    ComparedMetric("first token, p99", "", "first_token_p99"),
    ComparedMetric("per token, p50", "token_gap_p50", "token_p50"),
    ComparedMetric("whole answer, p50", "end_to_end_p50", "whole_p50"),
)


def best_simulated(planned: Mapping[str, float], what_ifs: Sequence[WhatIf]) -> list[BestOption]:
    """Return, for each metric, the change that helps most, if one helps."""
    rows = []
    possible = [each for each in what_ifs if each.helps and each.name != "speculation"]  # no setting
    for metric in METRICS:
        key = metric.simulated_key
        current = planned[key] if key else 0.0
        if not current:
            continue
        values = {each.change: each.after[key] for each in possible if each.after.get(key)}
        row = BestOption(metric.label, AS_PLANNED, metric.format(current), "", "")
        if values:
            best = (max if metric.is_more_better else min)(values, key=lambda name: values[name])
            gain = values[best] / current if metric.is_more_better else current / values[best]
            if gain > 1 + MIN_GAIN:
                figures = metric.format(values[best]), metric.format(current)
                row = BestOption(metric.label, best, figures[0], AS_PLANNED, figures[1])
        rows.append(row)
    return rows


def best_measured(comparison: Comparison) -> list[BestOption]:
    """Return, for each metric, the best engine and the second best."""
    rows = []
    for metric in (each for each in METRICS if each.measured_key):
        results = {each.engine: float(getattr(each, metric.measured_key)) for each in comparison.ranked}
        values = {engine: value for engine, value in results.items() if value}
        if not values:
            continue
        best, second, ratio = top_two(values, is_more_better=metric.is_more_better)
        if second is None:
            rows.append(BestOption(metric.label, best, metric.format(values[best]), "", ""))
            continue
        name = best if ratio > TIE_RATIO else f"{TIE}: {best}"
        rows.append(BestOption(metric.label, name, metric.format(values[best]), second, metric.format(values[second])))
    return rows
