"""Results for a terminal: tables of metrics, percentiles, notes, winners and the conclusion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from quire.bench.figures.conclusion import conclude
from quire.bench.figures.load_metrics import LOAD_METRICS, TIMES
from quire.bench.figures.results import BenchmarkResults, EngineResult, comparison_table
from quire.bench.figures.table import format_number
from quire.bench.figures.winners import WINNER_HEADS, metric_winners, winner_sentence
from quire.bench.load.load_test import Point
from quire.bench.load.summary import Percentiles
from quire.bench.page.text_table import align_columns

MILLI = 1e-3
LABELS = {"first_token": "first token", "per_token": "per token", "gap": "gap", "end_to_end": "whole answer"}


def results_text(results: BenchmarkResults) -> str:
    """Return everything that is printed after a benchmark."""
    if len(results.engines) == 1:
        parts = [part for workload in results.plan.workloads for part in _one_engine(results.engines[0], workload)]
    else:
        parts = []
        for workload, load, points in results.groups():
            parts += [f"{workload}, {load}", align_columns(*comparison_table(points)), ""]
    return "\n".join([*parts, *_remarks(results), "", *_winners(results), *conclude(results)])


def _winners(results: BenchmarkResults) -> list[str]:
    sentence, winners = winner_sentence(results), metric_winners(results)
    table = ["", align_columns(WINNER_HEADS, winners), ""] if winners else []
    return [sentence, *table] if sentence else []


def _one_engine(engine: EngineResult, workload: str) -> Iterator[str]:
    """Yield a table of metrics with a column a load, then the percentiles of each load."""
    points = [point for point in engine.points if point.workload == workload]
    rows = [
        [metric.label, *(metric.format(point.summary) for point in points)]
        for metric in LOAD_METRICS
        if any(metric.value(point.summary) is not None for point in points)
    ]
    yield workload
    yield align_columns(["", *(str(point.load) for point in points)], rows)
    yield ""
    for point in points:
        heads = [f"{point.load}, ms", *(each.name for each in fields(Percentiles))]
        yield align_columns(heads, _percentile_rows(point))
        yield ""


def _percentile_rows(point: Point) -> list[list[str]]:
    rows = []
    for name in TIMES.values():
        percentiles = getattr(point.summary, name)
        values = (getattr(percentiles, each.name) / MILLI for each in fields(Percentiles))
        rows.append([LABELS[name], *map(format_number, values)])
    return rows


def _remarks(results: BenchmarkResults) -> Iterator[str]:
    """Yield notes, errors and concerns of each engine, and the delay of the load generator."""
    for engine in results.engines:
        yield from (f"{engine.name}: {note}" for note in engine.notes)
        for point in engine.points:
            title = f"{engine.name}, {point.workload}, {point.load}"
            yield from (f"{title}: {count} × {error}" for error, count in point.summary.errors.items())
            yield from (f"{title}: {concern}" for concern in point.summary.concerns)
    conditions = [point.summary.conditions for engine in results.engines for point in engine.points]
    delay = max(each.generator_delay.p99 for each in conditions) / MILLI
    share = max(each.processor_share for each in conditions)
    yield f"The generator was late by up to {delay:.2f} ms (99th percentile), and used up to {share:.0%} of a core."
