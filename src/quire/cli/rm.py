"""`quire rm`: remove models from the store."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import Given, argument, command


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """Which ones."""

    models: tuple[str, ...] = argument(..., "Names of models.", metavar="MODEL...", autocompletion=stored_models)


@command(RemoveOptions, names=("home",))
def rm(options: RemoveOptions, given: Given) -> None:
    """Remove models. Files that another name still needs stay."""
    for name in options.models:
        freed = given.store.remove(name)
        typer.echo(f"removed {name}, {freed / 1e6:,.1f} MB freed")
