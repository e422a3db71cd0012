"""`quire push`: send a model to a registry."""

from __future__ import annotations

import time
from dataclasses import dataclass

import typer

from quire.cli.completion import stored_models
from quire.cli.options import Given, argument, command
from quire.cli.progress import shown


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Which one."""

    model: str = argument(
        ..., "A name in the store that says where it goes: host/space/name:tag.", autocompletion=stored_models
    )


@command(PushOptions, "store")
def push(options: PushOptions, given: Given) -> None:
    """Send a model to a registry. Layers that are there already are not sent again."""
    start = time.monotonic()
    with shown() as progress:
        sent = given.store.push(options.model, progress)
    typer.echo(f"pushed {options.model}, {sent / 1e6:,.1f} MB sent, {time.monotonic() - start:.1f} s")
