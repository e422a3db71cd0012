"""`quire doctor`: check this machine: what Quire will use, what is missing and how to get it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

import typer

from quire.cli.commands.doctor_machine import Finding, check_machine
from quire.cli.commands.doctor_network import check_network, check_server
from quire.cli.options import CommandSettings, command, option

MARKS = {"ok": " ", "note": "-", "broken": "!"}


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Options of `quire doctor`."""

    network: bool = option(False, "Also check whether the package index and Hugging Face can be reached.", "--network")
    json: bool = option(False, "Print one JSON object.", "--json")


@command(DoctorOptions, names=("home", "memory_share", "host", "port", "api_key"))
def doctor(options: DoctorOptions, settings: CommandSettings) -> None:
    """Check this machine: what will be used, what is missing, and how to get it."""
    config = settings.config
    findings = [*check_machine(config), *check_server(config), *(check_network() if options.network else ())]
    is_broken = any(each.state == "broken" for each in findings)
    if options.json:
        typer.echo(json.dumps({"ok": not is_broken, "findings": [asdict(each) for each in findings]}, indent=2))
    else:
        _print(findings)
    if is_broken:
        raise typer.Exit(1)


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(each.name) for each in findings)
    for section, members in groupby(findings, key=lambda each: each.section):
        typer.echo(section)
        for each in members:
            typer.echo(f" {MARKS[each.state]} {each.name.ljust(width)}  {each.value}")
            if each.remedy:
                typer.echo(f"   {' ' * width}  → {each.remedy}")
    num_broken = sum(each.state == "broken" for each in findings)
    typer.echo(f"\nProblems to fix: {num_broken}, marked with !." if num_broken else "\nQuire can run on this machine.")
