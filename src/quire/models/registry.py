"""`@architecture` registers a model's file. Files are discovered; there is no list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.graph.graph import Graph, Value
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.keys import ConfigKeys
from quire.models.names import Names
from quire.models.values import MAX_SHOWN, Values, brief

Draw = Callable[[Graph, ModelConfig], Value]
AnyDraw = TypeVar("AnyDraw", bound=Draw)


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture under the names that checkpoints use for it."""

    name: str  # in config.json's `architectures`
    model_type: str  # in config.json's `model_type`
    gguf: str | None  # in GGUF's `general.architecture`; None: its GGUF files use another architecture's name
    names: Names
    keys: ConfigKeys
    draw: Draw


_ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str, *, model_type: str, names: Names, keys: ConfigKeys, gguf: str | None = None
) -> Callable[[AnyDraw], AnyDraw]:
    """Register the function that draws an architecture."""

    def register(draw: AnyDraw) -> AnyDraw:
        _ARCHITECTURES[name] = Architecture(name, model_type, gguf, names, keys, draw)
        return draw

    return register


def all_architectures() -> tuple[Architecture, ...]:
    """Return the architectures of every file in this package, sorted by name."""
    package = importlib.import_module("quire.models")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"quire.models.{module.name}")
    return tuple(_ARCHITECTURES[name] for name in sorted(_ARCHITECTURES))


def find_architecture(checkpoint: CheckpointSource) -> Architecture:
    """Return the architecture that the checkpoint names. An error lists the supported ones."""
    metadata = checkpoint.metadata
    if checkpoint.container == "gguf":
        names = [str(metadata.get("general.architecture"))]
        by_name = {arch.gguf: arch for arch in all_architectures() if arch.gguf is not None}
    else:
        _refuse_custom_code(metadata.get("auto_map"))
        by_name = {arch.name: arch for arch in all_architectures()}
        names = list(Values(metadata).texts("architectures") or _by_model_type(metadata) or ["(none)"])
    for name in names:
        if name in by_name:
            _check_model_type(by_name[name], metadata)
            return by_name[name]
    raise UnsupportedModel(
        f"The architecture {', '.join(names)[:MAX_SHOWN]} is not supported. Supported in {checkpoint.container} files "
        f"are: {', '.join(sorted(by_name))}."
    )


def _by_model_type(metadata: Mapping[str, Any]) -> list[str]:
    """Return the architecture of a config.json that has only a `model_type`."""
    return [arch.name for arch in all_architectures() if arch.model_type == metadata.get("model_type")]


def _check_model_type(arch: Architecture, metadata: Mapping[str, Any]) -> None:
    """Raise if the `model_type` of config.json belongs to another architecture."""
    model_type = metadata.get("model_type")
    if model_type not in (None, arch.model_type):
        raise UnsupportedModel(
            f"config.json has the model_type {brief(model_type)} and the architecture {arch.name}, whose model_type is "
            f"{arch.model_type!r}. Correct the one that is wrong."
        )


def _refuse_custom_code(auto_map: Any) -> None:
    """Raise if the checkpoint brings its own model code, which may compute anything. Tokenizer code is ignored."""
    is_map = isinstance(auto_map, Mapping)
    if auto_map and (not is_map or any(str(key).startswith(("AutoModel", "AutoConfig")) for key in auto_map)):
        raise UnsupportedModel(
            f"config.json has auto_map = {brief(auto_map)}: the model needs its own code, which Quire does not run. If "
            "the architecture's standard code is right for this model, remove auto_map."
        )
