"""`quire show`: what is known about a model, in the store or at a path."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from quire.cli.engine import describe
from quire.cli.options import Given, argument, command
from quire.store.errors import ModelNotFound
from quire.store.names import parse_name


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """Which one."""

    model: str = argument(..., "A name in the store, or a path.")


@command(ShowOptions, "store")
def show(options: ShowOptions, given: Given) -> None:
    """Show what a model is and where it came from."""
    facts: dict[str, str] = {}
    if parse_name(options.model).kind != "path":
        manifest = given.store.show(options.model)
        facts = {
            "name": f"{manifest.name}:{manifest.tag}",
            "source": manifest.source,
            "fetched": manifest.fetched,
            "licence": manifest.licence,
            "parameters": manifest.num_parameters,
            "quantization": manifest.quantization,
            "sampling": ", ".join(f"{name} {value:g}" for name, value in manifest.sampling.items()),
        }
        facts |= {file.file_name: f"{file.size:,} bytes, sha256 {file.digest[:16]}…" for file in manifest.files}
    path = given.store.find(options.model)
    if path is None:
        raise ModelNotFound(f"There is no file or folder {options.model}: check the path.")
    facts |= describe(path) | {"path": str(path)}
    width = max(map(len, facts))
    for name, value in facts.items():
        if value:
            typer.echo(f"{name.ljust(width)}  {value}")
