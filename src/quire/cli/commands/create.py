"""`quire create`: create a model from a Modelfile."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer

from quire.cli.options import CommandSettings, HelpPage, argument, command, option
from quire.cli.terminal.progress import show_progress
from quire.store.modelfile import parse_modelfile
from quire.types.errors import InvalidRequest

DEFAULT_FILE = "Modelfile"
EXAMPLES = ("quire create teacher", "quire create teacher:short -f teacher.modelfile")


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """Options of `quire create`."""

    name: str = argument(..., "Name of the new model: name or name:tag.")
    file: str = option(DEFAULT_FILE, "The Modelfile; - reads standard input.", "-f", "--file")


@command(CreateOptions, "store", help_page=HelpPage(EXAMPLES))
def create(options: CreateOptions, settings: CommandSettings) -> None:
    """Create a model from another one, with its own system prompt, parameters and template."""
    modelfile = parse_modelfile(_read(options.file))
    folder = Path() if options.file == "-" else Path(options.file).expanduser().parent
    store_create = import_module("quire.store.create")  # imported here: few commands need it
    with show_progress() as progress:
        check = import_module("quire.engine.supported").check_supported
        manifest = store_create.create_model(settings.store, options.name, modelfile, folder, progress, check)
    typer.echo(f"created {manifest.name}:{manifest.tag}, {manifest.size / 1e6:,.1f} MB, {manifest.source}")


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"Cannot read {path}: {error.strerror}.", field="file") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8 text.", field="file") from error
