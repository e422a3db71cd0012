"""`quire create`: a model out of a Modelfile."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer

from quire.cli.options import Given, Shown, argument, command, option
from quire.cli.progress import shown
from quire.store.modelfile import parse_modelfile
from quire.types.errors import InvalidRequest

FILE = "Modelfile"
EXAMPLES = ("quire create teacher", "quire create teacher:short -f teacher.modelfile")


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """What to make, and out of what."""

    name: str = argument(..., "The model's name: name or name:tag.")
    file: str = option(FILE, "The Modelfile; - reads standard input.", "-f", "--file")


@command(CreateOptions, "store", shown=Shown(EXAMPLES))
def create(options: CreateOptions, given: Given) -> None:
    """Make a model out of another one: with a system prompt, parameters, a template of its own."""
    file = parse_modelfile(_text(options.file))
    folder = Path() if options.file == "-" else Path(options.file).expanduser().parent
    making = import_module("quire.store.create")  # here: no other command waits for it
    with shown() as progress:
        check = import_module("quire.engine.supported").check_supported
        manifest = making.create_model(given.store, options.name, file, folder, progress, check)
    typer.echo(f"created {manifest.name}:{manifest.tag}, {manifest.size / 1e6:,.1f} MB, {manifest.source}")


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.", field="file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not text in UTF-8.", field="file") from error
