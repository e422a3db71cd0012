"""`quire key`: a new API key for a server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module

import typer

from quire.cli.options import Given, argument, command


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """For whom."""

    name: str = argument(..., "Who will use it.")


@command(KeyOptions)
def key(options: KeyOptions, given: Given) -> None:
    """Make an API key: the lines for the file of --api-keys, and on standard error, this once, the secret."""
    secret, made = import_module("quire.serve.access.keys").new_key(options.name)
    name = made.name.replace("\\", "\\\\").replace('"', '\\"')
    typer.echo(f'[[key]]\nname = "{name}"\nsha256 = "{made.sha256}"')
    print(f"The secret, which is stored nowhere: {secret}", file=sys.stderr)
