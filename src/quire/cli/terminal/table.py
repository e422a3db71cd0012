"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns. The first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
