"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def align_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
