"""`quire cp`: give a model a second name."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import CommandSettings, argument, command


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of `quire cp`."""

    source: str = argument(..., "The model.", autocompletion=stored_models)
    target: str = argument(..., "Its second name.")


@command(CopyOptions, names=("home",))
def cp(options: CopyOptions, settings: CommandSettings) -> None:
    """Give a model a second name. No files are copied."""
    manifest = settings.store.copy(options.source, options.target)
    typer.echo(f"copied {options.source} to {manifest.name}:{manifest.tag}")
