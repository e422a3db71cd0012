"""Figures as a Markdown table, for a terminal and for docs/PERFORMANCE.md."""

from __future__ import annotations

from collections.abc import Sequence

from quire.bench.figures.figure import Figure

SIGNIFICANT = 3


def format_number(value: float) -> str:
    """Format with three significant digits and thousands separators."""
    if value == 0:
        return "0"
    if abs(value) >= 10**SIGNIFICANT:
        return f"{value:,.0f}"
    text = f"{value:.{SIGNIFICANT}g}"
    return text if "e" not in text else f"{value:.1e}"


def figure_table(figures: Sequence[Figure]) -> str:
    """Return a table with one row a figure, and one column an engine. Empty columns are left out."""
    peers = list(dict.fromkeys(name for figure in figures for name in figure.peers))
    heads = ["", "Quire", *peers, "ratio", "goal", "", ""]
    rows = [_row(figure, peers) for figure in figures]
    used = [column == 0 or any(row[column] for row in rows) for column in range(len(heads))]
    kept = [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    head, *lines = (_line(row, widths) for row in kept)
    return "\n".join([head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines])


def _row(figure: Figure, peers: Sequence[str]) -> list[str]:
    def cell(value: float | None) -> str:
        return "" if value is None else f"{format_number(value)} {figure.unit}"

    ratio = "" if figure.ratio is None else format_number(figure.ratio)
    goal = "" if figure.goal is None else str(figure.goal)
    values = (cell(figure.value), *(cell(figure.peers.get(name)) for name in peers))
    return [figure.name, *values, ratio, goal, figure.verdict, figure.note]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
