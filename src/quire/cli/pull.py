"""`quire pull`: bring models into the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

import typer

from quire.cli.options import Given, Shown, argument, command
from quire.cli.progress import shown
from quire.store.store import DEFAULT_MODEL

EXAMPLES = (
    f"quire pull {DEFAULT_MODEL}",
    "quire pull hf.co/org/repo:Q4_K_M",
    "quire pull llama3.2",
    "quire pull localhost:5000/me/toy:latest",
)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Which ones."""

    models: tuple[str, ...] = argument((), f"Names of models; without any, {DEFAULT_MODEL}.", metavar="[MODEL]...")


@command(PullOptions, "store", shown=Shown(EXAMPLES))
def pull(options: PullOptions, given: Given) -> None:
    """Fetch a model, or check and mend the one that is there."""
    for name in options.models or [DEFAULT_MODEL]:
        start = time.monotonic()
        with shown() as progress:
            manifest = given.store.pull(name, progress)
        seconds = time.monotonic() - start
        typer.echo(
            f"{manifest.name}:{manifest.tag}  {manifest.size / 1e6:,.1f} MB, from {manifest.source}, {seconds:.1f} s"
        )
