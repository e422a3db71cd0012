"""`quire key`: create an API key for a server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module

import typer

from quire.cli.options import CommandSettings, argument, command


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Options of `quire key`."""

    name: str = argument(..., "Name of the key's user.")


@command(KeyOptions)
def key(options: KeyOptions, settings: CommandSettings) -> None:
    """Create an API key. Prints its entry for the --api-keys file; the secret goes to standard error, once."""
    secret, entry = import_module("quire.serve.access.keys").new_key(options.name)
    name = entry.name.replace("\\", "\\\\").replace('"', '\\"')
    typer.echo(f'[[key]]\nname = "{name}"\nsha256 = "{entry.sha256}"')
    print(f"Secret (not stored, shown once): {secret}", file=sys.stderr)
