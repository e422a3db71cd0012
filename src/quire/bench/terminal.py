"""What was measured, for a terminal: figures side by side, how times are distributed, and what to think of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from quire.bench.measure import Point
from quire.bench.outcome import Outcome, Result, compared
from quire.bench.rows import ROWS, SPREADS
from quire.bench.summary import Spread
from quire.bench.table import number
from quire.bench.verdict import conclusion
from quire.bench.winners import HEADS, answer_line, winners

MILLI = 1e-3
NAMES = {"first_token": "first token", "per_token": "per token", "gap": "gap", "whole": "whole answer"}


def told(outcome: Outcome) -> str:
    """All of it."""
    if len(outcome.results) == 1:
        parts = [part for workload in outcome.plan.workloads for part in _alone(outcome.results[0], workload)]
    else:
        parts = []
        for workload, load, points in outcome.groups():
            parts += [f"{workload}, {load}", aligned(*compared(points)), ""]
    return "\n".join([*parts, *_beside(outcome), "", *_winners(outcome), *conclusion(outcome)])


def _winners(outcome: Outcome) -> list[str]:
    """The answer in one line, and a table of winners."""
    line, found = answer_line(outcome), winners(outcome)
    table = ["", aligned(HEADS, found), ""] if found else []
    return [line, *table] if line else []


def _alone(result: Result, workload: str) -> Iterator[str]:
    """Of one engine, a column a load."""
    points = [point for point in result.points if point.workload == workload]
    rows = [
        [row.label, *(row.shown(point.summary) for point in points)]
        for row in ROWS
        if any(row.of(point.summary) is not None for point in points)
    ]
    yield workload
    yield aligned(["", *(str(point.load) for point in points)], rows)
    yield ""
    for point in points:
        yield aligned([f"{point.load}, ms", *(each.name for each in fields(Spread))], _spreads(point))
        yield ""


def _spreads(point: Point) -> list[list[str]]:
    rows = []
    for name in SPREADS.values():
        spread = getattr(point.summary, name)
        rows.append([NAMES[name], *(number(getattr(spread, each.name) / MILLI) for each in fields(Spread))])
    return rows


def _beside(outcome: Outcome) -> Iterator[str]:
    """Errors, concerns and notes, each with whose it is."""
    for result in outcome.results:
        yield from (f"{result.name}: {note}" for note in result.notes)
        for point in result.points:
            where = f"{result.name}, {point.workload}, {point.load}"
            yield from (f"{where}: {count} × {error}" for error, count in point.summary.errors.items())
            yield from (f"{where}: {concern}" for concern in point.summary.concerns)
    delays = [point.summary.around for result in outcome.results for point in result.points]
    p99, core = max(each.own_delay.p99 for each in delays) / MILLI, max(each.processor_share for each in delays)
    yield f"The generator was late by up to {p99:.2f} ms (99th percentile), and took up to {core:.0%} of a core."


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
