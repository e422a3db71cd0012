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
from quire.models.keys import ConfigKeys
from quire.models.names import Names
from quire.models.values import MAX_SHOWN, Values, brief

Draw = Callable[[Graph, Any], Value]  # the second is of the architecture's own kind of configuration
AnyDraw = TypeVar("AnyDraw", bound=Draw)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A way to draw a model, under the name that checkpoints have for it."""

    name: str  # in config.json's `architectures`
    model_type: str  # in config.json, beside it
    gguf: str | None  # in GGUF's `general.architecture`; None: GGUF files of it say another's name
    names: Names
    keys: ConfigKeys  # of a configuration: those that are read, those that do not matter
    config: type[ModelConfig]
    draw: Draw


_ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str,
    *,
    model_type: str,
    names: Names,
    keys: ConfigKeys,
    config: type[ModelConfig] = ModelConfig,
    gguf: str | None = None,
) -> Callable[[AnyDraw], AnyDraw]:
    """Register the function that draws an architecture."""

    def register(draw: AnyDraw) -> AnyDraw:
        _ARCHITECTURES[name] = Architecture(name, model_type, gguf, names, keys, config, draw)
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
    metadata = checkpoint.metadata
    if checkpoint.container == "gguf":
        said = [str(metadata.get("general.architecture"))]
        by_name = {arch.gguf: arch for arch in all_architectures() if arch.gguf is not None}
    else:
        _refuse_custom_code(metadata.get("auto_map"))
        by_name = {arch.name: arch for arch in all_architectures()}
        said = list(Values(metadata).texts("architectures") or _by_model_type(metadata) or ["(none)"])
    for name in said:
        if name in by_name:
            return _agreeing(by_name[name], metadata)
    raise UnsupportedModel(
        f"The architecture {', '.join(said)[:MAX_SHOWN]} is not supported. Supported in {checkpoint.container} files "
        f"are: {', '.join(sorted(by_name))}.{_advice_on_text_model(metadata.get('text_config'))}"
    )


def _advice_on_text_model(config: Any) -> str:
    """Return what to do with a model of text and images whose text model is supported."""
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    names = [arch.name for arch in all_architectures() if arch.model_type == model_type]
    return f" Its text model is {names[0]}: save that as a checkpoint, or use its GGUF file." if names else ""


def _by_model_type(metadata: Mapping[str, Any]) -> list[str]:
    """The architecture of a config.json that names its `model_type` alone."""
    return [arch.name for arch in all_architectures() if arch.model_type == metadata.get("model_type")]


def _agreeing(arch: Architecture, metadata: Mapping[str, Any]) -> Architecture:
    """The same, unless config.json says in its other key that the model is another one."""
    model_type = metadata.get("model_type")
    if model_type not in (None, arch.model_type):
        raise UnsupportedModel(
            f"config.json has the model_type {brief(model_type)} and the architecture {arch.name}, whose model_type is "
            f"{arch.model_type!r}. Correct the one that is wrong."
        )
    return arch


def _refuse_custom_code(auto_map: Any) -> None:
    """Code of its own that comes with a checkpoint may compute anything. That of a tokenizer is not the model's."""
    is_map = isinstance(auto_map, Mapping)
    if auto_map and (not is_map or any(str(key).startswith(("AutoModel", "AutoConfig")) for key in auto_map)):
        raise UnsupportedModel(
            f"config.json has auto_map = {brief(auto_map)}: the model is computed by code of its own, which is not "
            "run. If the architecture's usual code is right for this model, remove auto_map."
        )
