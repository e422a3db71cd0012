"""`quire list`: the models in the store, and those that other programs keep on this disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from quire.cli.options import Given, command, option

COLUMNS = {"name": "NAME", "size": "SIZE", "format": "FORMAT", "fetched": "FETCHED", "where": "WHERE"}


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Which ones, and how to print them."""

    all: bool = option(
        False, "Also those of Ollama and of the model hub's cache, which are used where they lie; with where that is.",
        "--all", "-a",
    )  # fmt: skip
    json: bool = option(False, "Print one JSON object.", "--json")


@command(ListOptions, names=("home",))
def list_all(options: ListOptions, given: Given) -> None:
    """Show the models that are here."""
    models = list(_models(options, given))
    if options.json:
        typer.echo(json.dumps({"models": models}, indent=2))
        return
    names = [name for name in COLUMNS if options.all or name != "where"]
    rows = [[COLUMNS[name] for name in names], *([_cell(model, name) for name in names] for model in models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _models(options: ListOptions, given: Given) -> Iterator[dict[str, Any]]:
    for each in given.store.list():
        yield {
            "name": f"{each.name}:{each.tag}",
            "size": each.size,
            "format": each.format,
            "quantization": each.quantization,
            "fetched": each.fetched,
            "source": each.source,
            "where": f"the store, {given.home}",
        }
    for found in given.store.external_models() if options.all else ():
        yield {
            "name": str(found.name),
            "size": found.size,
            "format": found.about.format,
            "quantization": found.about.quantization,
            "fetched": found.modified,
            "source": found.program,
            "where": f"{found.program}, {found.folder}",
        }


def _cell(model: dict[str, Any], name: str) -> str:
    match name:
        case "size":
            return f"{model['size'] / 1e6:,.1f} MB"
        case "format":
            return f"{model['format']} {model['quantization']}".strip()
        case "fetched":
            return str(model["fetched"])[:16].replace("T", " ")
        case _:
            return str(model[name])
