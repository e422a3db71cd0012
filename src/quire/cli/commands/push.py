"""`quire push`: upload a model to a registry."""

from __future__ import annotations

import time
from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import CommandSettings, argument, command
from quire.cli.terminal.progress import show_progress


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of `quire push`."""

    model: str = argument(
        ..., "A stored model whose name contains the registry: host/space/name:tag.", autocompletion=stored_models
    )


@command(PushOptions, "store")
def push(options: PushOptions, settings: CommandSettings) -> None:
    """Upload a model to a registry. Layers that the registry has are not sent again."""
    start = time.monotonic()
    with show_progress() as progress:
        sent = settings.store.push(options.model, progress)
    typer.echo(f"pushed {options.model}, {sent / 1e6:,.1f} MB sent, {time.monotonic() - start:.1f} s")
