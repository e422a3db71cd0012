"""`quire show`: what is known about a model, in the store or at a path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from quire.cli.completion import stored_models
from quire.cli.engine import describe, template_of
from quire.cli.options import Given, argument, command, option
from quire.store.errors import ModelNotFound
from quire.store.names import parse_name
from quire.types.errors import InvalidRequest
from quire.types.parameters import modelfile_lines
from quire.types.preset import Preset

PARTS = ("modelfile", "template", "system", "parameters", "license", "json")


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """Which one, and what of it."""

    model: str = argument(..., "A name in the store, or a path.", autocompletion=stored_models)
    modelfile: bool = option(False, "Print a Modelfile that makes it again.", "--modelfile")
    template: bool = option(False, "Print its chat template.", "--template")
    system: bool = option(False, "Print its system prompt.", "--system")
    parameters: bool = option(False, "Print its parameters.", "--parameters")
    license: bool = option(False, "Print its licences.", "--license")
    json: bool = option(False, "Print all of it as one JSON object.", "--json")


@command(ShowOptions, names=("home",))
def show(options: ShowOptions, given: Given) -> None:
    """Show what a model is and where it came from."""
    asked = [part for part in PARTS if getattr(options, part)]
    if len(asked) > 1:
        raise InvalidRequest(f"Give one of {', '.join(f'--{part}' for part in PARTS)}.", field=asked[1])
    if options.json:
        typer.echo(json.dumps(_as_json(options.model, given), indent=2, ensure_ascii=False))
    else:
        typer.echo(_part(options.model, asked[0], given) if asked else _facts(options.model, given))


def _facts(model: str, given: Given) -> str:
    facts: dict[str, str] = {}
    if parse_name(model).kind != "path":
        manifest = given.store.show(model)
        preset: Preset = import_module("quire.store.create").preset_of_model(given.store, manifest)
        facts = {
            "name": f"{manifest.name}:{manifest.tag}",
            "source": manifest.source,
            "fetched": manifest.fetched,
            "licence": manifest.licence,
            "parameters": manifest.num_parameters,
            "quantization": manifest.quantization,
            "system": " ".join(preset.system.split()),
        }
        facts |= {file.file_name: f"{file.size:,} bytes, sha256 {file.digest[:16]}…" for file in manifest.files}
    path = _path(model, given)
    facts |= describe(path) | {"path": str(path)}
    width = max(map(len, facts))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items() if value)


def _as_json(model: str, given: Given) -> dict[str, Any]:
    """All that is known, for programs."""
    path = _path(model, given)
    facts = {"path": str(path), **describe(path), "template": template_of(path)}
    if parse_name(model).kind == "path":
        return facts
    manifest = given.store.show(model)
    preset: Preset = import_module("quire.store.create").preset_of_model(given.store, manifest)
    files = [{"name": file.file_name, "size": file.size, "sha256": file.digest} for file in manifest.files]
    return {
        "name": f"{manifest.name}:{manifest.tag}",
        "size": manifest.size,
        "format": manifest.format,
        "quantization": manifest.quantization,
        "num_parameters": manifest.num_parameters,
        "source": manifest.source,
        "fetched": manifest.fetched,
        "license": "\n\n".join(preset.licences) or manifest.licence,
        "sampling": dict(manifest.sampling),
        "parameters": dict(modelfile_lines(preset.parameters)),
        "system": preset.system,
        "files": files,
        **facts,
    }


def _path(model: str, given: Given) -> Path:
    path = given.store.find(model)
    if path is None:
        raise ModelNotFound(f"There is no file or folder {model}: check the path.")
    return path


def _part(model: str, part: str, given: Given) -> str:
    """One thing of a stored model, as it is."""
    making = import_module("quire.store.create")  # here: no other command waits for it
    if part == "modelfile":
        return str(making.modelfile_of(given.store, model)).rstrip("\n")
    manifest = given.store.show(model)
    preset: Preset = making.preset_of_model(given.store, manifest)
    match part:
        case "parameters":
            return "\n".join(f"{name:<30} {value}" for name, value in modelfile_lines(preset.parameters))
        case "license":
            return "\n\n".join(preset.licences) or manifest.licence
        case "system":
            return preset.system
        case _:
            return template_of(given.store.resolve(model))
