"""`quire list`: the models in the store, and those that other programs keep on this disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import typer

from quire.cli.options import Given, command, option

COLUMNS = ("NAME", "SIZE", "FORMAT", "FETCHED")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Which ones."""

    all: bool = option(
        False, "Also those of Ollama and of the model hub's cache, which are used where they lie; with where that is.",
        "--all", "-a",
    )  # fmt: skip


@command(ListOptions, "store")
def list_all(options: ListOptions, given: Given) -> None:
    """Show the models that are here."""
    rows = [(*COLUMNS, "WHERE") if options.all else COLUMNS, *_rows(options, given)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rows(options: ListOptions, given: Given) -> Iterator[tuple[str, ...]]:
    for each in given.store.list():
        row = _row(f"{each.name}:{each.tag}", each.size, f"{each.format} {each.quantization}", each.fetched)
        yield (*row, f"the store, {given.home}") if options.all else row
    for found in given.store.elsewhere() if options.all else ():
        kind = f"{found.about.format} {found.about.quantization}"
        yield (*_row(str(found.name), found.size, kind, found.modified), f"{found.keeper}, {found.folder}")


def _row(name: str, num_bytes: int, kind: str, time: str) -> tuple[str, ...]:
    return name, f"{num_bytes / 1e6:,.1f} MB", kind.strip(), time[:16].replace("T", " ")
