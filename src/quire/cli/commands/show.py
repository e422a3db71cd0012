"""`quire show`: details of a stored model or of a model file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from quire.cli.completion import stored_models
from quire.cli.options import CommandSettings, argument, command, option
from quire.store.errors import ModelNotFound
from quire.store.names import parse_name
from quire.types.errors import InvalidRequest, QuireError
from quire.types.parameters import modelfile_lines
from quire.types.preset import Preset

SELECTIONS = ("modelfile", "template", "system", "parameters", "license", "json")


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """Options of `quire show`."""

    model: str = argument(..., "A stored model, or a path.", autocompletion=stored_models)
    modelfile: bool = option(False, "Print a Modelfile that recreates it.", "--modelfile")
    template: bool = option(False, "Print its chat template.", "--template")
    system: bool = option(False, "Print its system prompt.", "--system")
    parameters: bool = option(False, "Print its parameters.", "--parameters")
    license: bool = option(False, "Print its licences.", "--license")
    json: bool = option(False, "Print everything as one JSON object.", "--json")


@command(ShowOptions, names=("home",))
def show(options: ShowOptions, settings: CommandSettings) -> None:
    """Show details of a model and its source."""
    selected = [name for name in SELECTIONS if getattr(options, name)]
    if len(selected) > 1:
        flags = ", ".join(f"--{name}" for name in SELECTIONS)
        raise InvalidRequest(f"{len(selected)} selections were given. Use only one of {flags}.", field=selected[1])
    if options.json:
        typer.echo(json.dumps(_as_json(options.model, settings), indent=2, ensure_ascii=False))
    elif selected:
        typer.echo(_selection(options.model, selected[0], settings))
    else:
        typer.echo(_details(options.model, settings))


def _details(model: str, settings: CommandSettings) -> str:
    """Return a line for each property."""
    details: dict[str, str] = {}
    if parse_name(model).kind != "path":
        manifest, preset = _stored(model, settings)
        details = {
            "name": f"{manifest.name}:{manifest.tag}",
            "source": manifest.source,
            "fetched": manifest.fetched,
            "licence": manifest.licence,
            "parameters": manifest.num_parameters,
            "quantization": manifest.quantization,
            "system": " ".join(preset.system.split()),
        }
        details |= {file.file_name: f"{file.size:,} bytes, sha256 {file.digest[:16]}…" for file in manifest.files}
    path = _path(model, settings)
    details |= checkpoint_details(path) | {"path": str(path)}
    width = max(map(len, details))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in details.items() if value)


def _as_json(model: str, settings: CommandSettings) -> dict[str, Any]:
    path = _path(model, settings)
    details = {"path": str(path), **checkpoint_details(path), "template": _chat_template(path)}
    if parse_name(model).kind == "path":
        return details
    manifest, preset = _stored(model, settings)
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
        **details,
    }


def _selection(model: str, name: str, settings: CommandSettings) -> str:
    """Return one property of a stored model, unabridged."""
    if name == "modelfile":
        return str(import_module("quire.store.create").modelfile_text(settings.store, model)).rstrip("\n")
    manifest, preset = _stored(model, settings)
    match name:
        case "parameters":
            return "\n".join(f"{name:<30} {value}" for name, value in modelfile_lines(preset.parameters))
        case "license":
            return "\n\n".join(preset.licences) or str(manifest.licence)
        case "system":
            return preset.system
        case _:
            return _chat_template(settings.store.resolve(model))


def _stored(model: str, settings: CommandSettings) -> tuple[Any, Preset]:
    """Return a stored model's manifest, and the preset of its Modelfile."""
    manifest = settings.store.show(model)
    return manifest, import_module("quire.store.create").preset_of_model(settings.store, manifest)


def _path(model: str, settings: CommandSettings) -> Path:
    path = settings.store.find(model)
    if path is None:
        raise ModelNotFound(f"There is no file or folder {model}: check the path.")
    return path


def checkpoint_details(path: Path) -> dict[str, str]:
    """Return what the header of a model's files says. Raise if the files are damaged."""
    checkpoint = import_module("quire.weights.checkpoint").open_checkpoint(path)
    metadata = checkpoint.metadata
    if checkpoint.container == "gguf":
        architecture = str(metadata.get("general.architecture", ""))
        context = metadata.get(f"{architecture}.context_length", "")
    else:
        named = metadata.get("architectures") or metadata.get("model_type") or ""
        architecture = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
        context = metadata.get("max_position_embeddings", "")
    folder = path if path.is_dir() else path.parent
    preset = import_module("quire.text.preset").read_preset(folder)
    defaults = import_module("quire.text.sampling_defaults")
    return {
        "container": checkpoint.container,
        "architecture": architecture,
        "context": str(context),
        "KV cache": _cache_sizes(checkpoint),
        "tensors": str(len(checkpoint.tensors)),
        "sampling defaults": defaults.read_sampling_defaults(folder, metadata, preset).describe(),
    }


def _cache_sizes(checkpoint: Any) -> str:
    """Return what a request takes of the KV cache on the default device; empty if the model cannot be run."""
    try:
        sizes = import_module("quire.engine.need").cache_sizes(checkpoint)
    except QuireError:
        return ""
    parts = [f"{sizes.tokens:,} for each token"] if sizes.tokens else []
    parts += [f"{each.block:,} for each of the last {each.window:,} tokens" for each in sizes.windows]
    parts += [f"{sizes.state:,} for the state of a text"] if sizes.state else []
    return f"bytes: {', '.join(parts)}"


def _chat_template(path: Path) -> str:
    """Return a model's chat template; empty if its files have none."""
    checkpoint = import_module("quire.weights.checkpoint").open_checkpoint(path)
    template = import_module("quire.engine.model_files").read_model_text(checkpoint).template
    return "" if template.is_default else str(template.sources.get("default", ""))
