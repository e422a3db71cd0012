"""`quire pull`: download models into the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

import typer

from quire.cli.options import CommandSettings, HelpPage, argument, command
from quire.cli.terminal.progress import show_progress
from quire.store.store import DEFAULT_MODEL

EXAMPLES = (
    f"quire pull {DEFAULT_MODEL}",
    "quire pull hf.co/org/repo:Q4_K_M",
    "quire pull llama3.2",
    "quire pull localhost:5000/me/toy:latest",
)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Options of `quire pull`."""

    models: tuple[str, ...] = argument((), f"Model names. Default: {DEFAULT_MODEL}.", metavar="[MODEL]...")


@command(PullOptions, "store", help_page=HelpPage(EXAMPLES))
def pull(options: PullOptions, settings: CommandSettings) -> None:
    """Download a model. If it is in the store, verify it and repair it."""
    for name in options.models or [DEFAULT_MODEL]:
        start = time.monotonic()
        with show_progress() as progress:
            manifest = settings.store.pull(name, progress)
        seconds = time.monotonic() - start
        typer.echo(
            f"{manifest.name}:{manifest.tag}  {manifest.size / 1e6:,.1f} MB, from {manifest.source}, {seconds:.1f} s"
        )
