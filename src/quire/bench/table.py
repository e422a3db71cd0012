"""Figures as a table in Markdown: for a terminal, and to be pasted into docs/PERFORMANCE.md as it is."""

from __future__ import annotations

from collections.abc import Sequence

from quire.bench.figure import Figure

SIGNIFICANT = 3


def number(value: float) -> str:
    """Three digits that count, in the way people write numbers."""
    if value == 0:
        return "0"
    if abs(value) >= 10**SIGNIFICANT:
        return f"{value:,.0f}"
    shown = f"{value:.{SIGNIFICANT}g}"
    return shown if "e" not in shown else f"{value:.1e}"


def table(figures: Sequence[Figure]) -> str:
    """One row a figure. Columns in which nothing stands are left out."""
    heads = ["", "Quire", "peer", "ratio", "goal", "", ""]
    rows = [_row(figure) for figure in figures]
    used = [column == 0 or any(row[column] for row in rows) for column in range(len(heads))]
    kept = [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    head, *lines = (_line(row, widths) for row in kept)
    return "\n".join([head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines])


def _row(figure: Figure) -> list[str]:
    peer = "" if figure.peer is None else f"{number(figure.peer)} {figure.unit}"
    ratio = "" if figure.ratio is None else number(figure.ratio)
    goal = "" if figure.goal is None else str(figure.goal)
    return [figure.name, f"{number(figure.value)} {figure.unit}", peer, ratio, goal, figure.verdict, figure.note]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
