"""`@architecture`: how a model's file makes itself known. Files are found, not listed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.graph.graph import Graph, Value
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.errors import UnsupportedModel
from quire.models.names import Names

Draw = Callable[[Graph, ModelConfig], Value]
AnyDraw = TypeVar("AnyDraw", bound=Draw)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A way to draw a model, under the name that checkpoints have for it."""

    name: str  # in config.json's `architectures`
    gguf: str | None  # in GGUF's `general.architecture`; None: GGUF files of it say another's name
    names: Names
    defaults: Mapping[str, Any]  # for keys that config.json may leave out
    draw: Draw


_ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str, *, names: Names, gguf: str | None = None, defaults: Mapping[str, Any] | None = None
) -> Callable[[AnyDraw], AnyDraw]:
    """Register the function that draws an architecture."""

    def register(draw: AnyDraw) -> AnyDraw:
        _ARCHITECTURES[name] = Architecture(name, gguf, names, defaults or {}, draw)
        return draw

    return register


def all_architectures() -> tuple[Architecture, ...]:
    """Those of every file in this package, by name."""
    package = importlib.import_module("quire.models")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"quire.models.{module.name}")
    return tuple(_ARCHITECTURES[name] for name in sorted(_ARCHITECTURES))


def find_architecture(checkpoint: CheckpointSource) -> Architecture:
    """The one that the checkpoint names. An error lists those that there are."""
    if checkpoint.container == "gguf":
        said = [str(checkpoint.metadata.get("general.architecture"))]
        by_name = {arch.gguf: arch for arch in all_architectures() if arch.gguf is not None}
    else:
        said = list(checkpoint.metadata.get("architectures") or ["(none)"])
        by_name = {arch.name: arch for arch in all_architectures()}
    for name in said:
        if name in by_name:
            return by_name[name]
    raise UnsupportedModel(
        f"The architecture {', '.join(said)} is not supported. In {checkpoint.container} files these are: "
        f"{', '.join(sorted(by_name))}."
    )
