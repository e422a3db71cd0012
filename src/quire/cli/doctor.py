"""`quire doctor`: what this machine has, what quire will use of it and why, what is missing and how to get it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

import typer

from quire.cli.findings import Finding, look
from quire.cli.options import Given, command, option
from quire.cli.reachable import network, server

MARKS = {"ok": " ", "note": "-", "broken": "!"}


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to look at, and how to say it."""

    network: bool = option(
        False, "Also ask the package index and the model hub whether they can be reached.", "--network"
    )
    json: bool = option(False, "Print one JSON object.", "--json")


@command(DoctorOptions, names=("home", "memory_share", "host", "port", "api_key"))
def doctor(options: DoctorOptions, given: Given) -> None:
    """Look at this machine: what will be used, what is missing, and how to get it."""
    found = [*look(given.config), *server(given.config), *(network() if options.network else ())]
    is_broken = any(each.state == "broken" for each in found)
    if options.json:
        typer.echo(json.dumps({"ok": not is_broken, "findings": [asdict(each) for each in found]}, indent=2))
    else:
        _print(found)
    if is_broken:
        raise typer.Exit(1)


def _print(found: Sequence[Finding]) -> None:
    width = max(len(each.name) for each in found)
    for section, members in groupby(found, key=lambda each: each.section):
        typer.echo(section)
        for each in members:
            typer.echo(f" {MARKS[each.state]} {each.name.ljust(width)}  {each.value}")
            if each.remedy:
                typer.echo(f"   {' ' * width}  → {each.remedy}")
    num_broken = sum(each.state == "broken" for each in found)
    typer.echo(f"\n{num_broken} of these must be mended." if num_broken else "\nAll that quire needs is here.")
