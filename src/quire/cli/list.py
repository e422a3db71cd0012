"""`quire list`: the models in the store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import typer

from quire.cli.options import Given, command, option
from quire.store.manifest import Manifest

COLUMNS = ("NAME", "SIZE", "FORMAT", "FETCHED")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """How to say it."""

    json: bool = option(False, "Print one JSON object.", "--json")


@command(ListOptions, names=("home",))
def list_all(options: ListOptions, given: Given) -> None:
    """Show the models that are here."""
    if options.json:
        typer.echo(json.dumps({"models": [_facts(each) for each in given.store.list()]}, indent=2))
        return
    rows = [COLUMNS]
    for each in given.store.list():
        kind = f"{each.format} {each.quantization}".strip()
        rows.append(
            (f"{each.name}:{each.tag}", f"{each.size / 1e6:,.1f} MB", kind, each.fetched[:16].replace("T", " "))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": f"{manifest.name}:{manifest.tag}",
        "size": manifest.size,
        "format": manifest.format,
        "quantization": manifest.quantization,
        "fetched": manifest.fetched,
        "source": manifest.source,
    }
