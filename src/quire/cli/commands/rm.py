"""`quire rm`: remove models from the store."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import CommandSettings, argument, command


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """Options of `quire rm`."""

    models: tuple[str, ...] = argument(..., "Model names.", metavar="MODEL...", autocompletion=stored_models)


@command(RemoveOptions, names=("home",))
def rm(options: RemoveOptions, settings: CommandSettings) -> None:
    """Remove models. Files that another name uses are kept."""
    for name in options.models:
        freed = settings.store.remove(name)
        typer.echo(f"removed {name}, {freed / 1e6:,.1f} MB freed")
