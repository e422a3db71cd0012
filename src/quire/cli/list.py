"""`quire list`: the models in the store."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.options import Given, command

COLUMNS = ("NAME", "SIZE", "FORMAT", "FETCHED")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """None of its own."""


@command(ListOptions, "store")
def list_all(options: ListOptions, given: Given) -> None:
    """Show the models that are here."""
    rows = [COLUMNS]
    for each in given.store.list():
        kind = f"{each.format} {each.quantization}".strip()
        rows.append(
            (f"{each.name}:{each.tag}", f"{each.size / 1e6:,.1f} MB", kind, each.fetched[:16].replace("T", " "))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
