"""`quire list`: list the models of the store, and those of other programs on this disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from quire.cli.options import CommandSettings, command, option
from quire.cli.terminal.table import print_table

COLUMNS = {"name": "NAME", "size": "SIZE", "format": "FORMAT", "fetched": "FETCHED", "where": "WHERE"}


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of `quire list`."""

    all: bool = option(
        False, "Also list models of Ollama and of the Hugging Face cache, with their folders; they are used in place.",
        "--all", "-a",
    )  # fmt: skip
    json: bool = option(False, "Print one JSON object.", "--json")


@command(ListOptions, names=("home",))
def list_models(options: ListOptions, settings: CommandSettings) -> None:
    """List the models on this disk."""
    models = list(_models(options, settings))
    if options.json:
        typer.echo(json.dumps({"models": models}, indent=2))
        return
    names = [name for name in COLUMNS if options.all or name != "where"]
    print_table([[COLUMNS[name] for name in names], *([_cell(model, name) for name in names] for model in models)])


def _models(options: ListOptions, settings: CommandSettings) -> Iterator[dict[str, Any]]:
    for each in settings.store.list():
        yield {
            "name": f"{each.name}:{each.tag}",
            "size": each.size,
            "format": each.format,
            "quantization": each.quantization,
            "fetched": each.fetched,
            "source": each.source,
            "where": f"the store, {settings.home}",
        }
    for other in settings.store.external_models() if options.all else ():
        yield {
            "name": str(other.name),
            "size": other.size,
            "format": other.about.format,
            "quantization": other.about.quantization,
            "fetched": other.modified,
            "source": other.program,
            "where": f"{other.program}, {other.folder}",
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
