"""`quire cp`: a second name for a model."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import Given, argument, command


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """From where to where."""

    source: str = argument(..., "The model.", autocompletion=stored_models)
    target: str = argument(..., "Its new name.")


@command(CopyOptions, names=("home",))
def cp(options: CopyOptions, given: Given) -> None:
    """Give a model a second name. No bytes are copied."""
    manifest = given.store.copy(options.source, options.target)
    typer.echo(f"{options.source} is now {manifest.name}:{manifest.tag} too")
