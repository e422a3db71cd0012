"""`@architecture` registers a model's file. Files are discovered; there is no list."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from quire.graph.graph import Graph, Value
from quire.models.config import CheckpointSource, ModelConfig, read_config
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.keys import ConfigKeys, KeySet
from quire.models.missing import REASONS
from quire.models.moe import MoeConfig
from quire.models.mtp import MtpHead
from quire.models.names import Names, TensorName, bind_weights
from quire.models.source import SourceModel
from quire.models.values import MAX_SHOWN, Values, brief

Draw = Callable[[Graph, Any], Value]  # the second is of the architecture's own kind of configuration
AnyDraw = TypeVar("AnyDraw", bound=Draw)


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture under the names that checkpoints use for it."""

    name: str  # in config.json's `architectures`
    model_types: tuple[str, ...]  # in config.json's `model_type`
    gguf: str | None  # in GGUF's `general.architecture`; None: its GGUF files have another architecture's name
    names: Names
    keys: ConfigKeys  # of a configuration: those that are read, those that do not matter
    config: type[ModelConfig]
    draw: Draw
    mtp: MtpHead | None = None  # the head that its checkpoints may have
    alias_of: str | None = None  # the architecture that this is another name of
    source: SourceModel | None = None  # of an encoder-decoder: what it has beside the decoder


_ARCHITECTURES: dict[str, Architecture] = {}
_FAMILY = re.compile(r"(Model|ForSequenceClassification)$")


def architecture(
    name: str,
    *,
    model_type: str | tuple[str, ...],
    names: Names,
    keys: ConfigKeys,
    config: type[ModelConfig] = ModelConfig,
    gguf: str | None = None,
) -> Callable[[AnyDraw], AnyDraw]:
    """Register the function that draws an architecture."""

    types = (model_type,) if isinstance(model_type, str) else model_type

    def register(draw: AnyDraw) -> AnyDraw:
        _ARCHITECTURES[name] = Architecture(name, types, gguf, names, keys, config, draw)
        return draw

    return register


def reads_source(name: str, source: SourceModel) -> None:
    """Add to a registered decoder what computes the sources that it reads."""
    _ARCHITECTURES[name] = replace(_ARCHITECTURES[name], source=source)


def alias(name: str, *, of: str, model_type: str, gguf: str | None = None, **changes: Any) -> None:
    """Register another name of an architecture, from a file that imports it.

    `changes`: names and keys where they differ.
    """
    same = _ARCHITECTURES[of]
    _ARCHITECTURES[name] = replace(same, name=name, model_types=(model_type,), gguf=gguf, alias_of=of, **changes)


def add_mtp(name: str, head: MtpHead) -> None:
    """Register the head that checkpoints of an architecture may have, from a file that imports it."""
    _ARCHITECTURES[name] = replace(_ARCHITECTURES[name], mtp=head)


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
        named = [str(metadata.get("general.architecture"))]
    else:
        named = list(Values(metadata).texts("architectures") or _by_model_type(metadata) or ["(none)"])
        _refuse_custom_code(metadata.get("auto_map"), named)
    found = _found(checkpoint, named, _importing(named))
    if found is not None:  # what other files add to it, such as a head that drafts, mentions it by its own name
        found = _found(checkpoint, named, _importing([*named, found.alias_of or found.name]))
    found = found or _found(checkpoint, named, all_architectures())
    if found is not None:
        return _agreeing(found, metadata)
    by_name = _by_name(checkpoint, named, all_architectures())
    reason = next((f": {REASONS[name]}" for name in named if name in REASONS), "")
    advice = f"{_advice_on_text_model(metadata.get('text_config'))}{_advice_on_relatives(checkpoint)}"
    raise UnsupportedModel(
        f"The architecture {', '.join(named)[:MAX_SHOWN]} is not supported{reason}. Supported in "
        f"{checkpoint.container} files are: {', '.join(sorted(by_name))}.{advice}"
    )


def _importing(names: Sequence[str]) -> tuple[Architecture, ...]:
    """The architectures that are registered once the files that mention one of these names are imported.

    Importing all of them takes 0.1 s, and a model needs few.
    """
    families = [_FAMILY.sub("", name) for name in names]
    wanted = [f'"{name}"' for name in (*names, *families, *(f"{family}ForCausalLM" for family in families))]
    for module, text in _file_texts().items():
        if any(name in text for name in wanted):
            importlib.import_module(module)
    return tuple(_ARCHITECTURES[name] for name in sorted(_ARCHITECTURES))


@cache
def _file_texts() -> Mapping[str, str]:
    """Return the source text of each file in this package that registers something, by module name."""
    folders = importlib.import_module("quire.models").__path__
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.py"))]
    return {f"quire.models.{file.stem}": file.read_text(encoding="utf-8") for file in files if file.stem != "__init__"}


def _by_name(
    checkpoint: CheckpointSource, named: Sequence[str], known: Sequence[Architecture]
) -> Mapping[str, Architecture]:
    if checkpoint.container != "gguf":
        return {arch.name: arch for arch in known}
    return by_gguf_name(known, has_experts=bool(checkpoint.metadata.get(f"{named[0]}.expert_count")))


def _found(checkpoint: CheckpointSource, named: Sequence[str], known: Sequence[Architecture]) -> Architecture | None:
    """Return the architecture with one of these names among `known`."""
    by_name = _by_name(checkpoint, named, known)
    for name in named:
        if name in by_name:
            return _by_head(by_name[name], checkpoint)
        if (decoder := by_name.get(f"{_FAMILY.sub('', name)}ForCausalLM")) is not None and _FAMILY.search(name):
            return _with_other_head(decoder, name)
    return None


def _by_head(found: Architecture, checkpoint: CheckpointSource) -> Architecture:
    """The architecture of a GGUF file, whose name is the same with a head of classes."""
    if checkpoint.container != "gguf" or "cls.output.weight" not in checkpoint.tensors:
        return found
    name = f"{re.sub('(Model|ForCausalLM)$', '', found.name)}ForSequenceClassification"
    return _ARCHITECTURES.get(name) or (_with_other_head(found, name) if "head" in found.names.entries else found)


def _with_other_head(decoder: Architecture, name: str) -> Architecture:
    """A decoder without its head, or with one of classes."""
    score = TensorName("score", "cls.output", ("labels", "hidden"))
    head: dict[str, TensorName | None] = {"head": None} | ({} if name.endswith("Model") else {"score": score})
    return replace(decoder, name=name, names=decoder.names.but(head), alias_of=decoder.name)


def by_gguf_name(known: Sequence[Architecture], *, has_experts: bool) -> dict[str, Architecture]:
    """Return the architectures by their names in GGUF, of which one may be that of two: without and with experts."""
    found = [arch for arch in known if arch.gguf is not None]
    found.sort(key=lambda arch: issubclass(arch.config, MoeConfig) == has_experts)
    return {str(arch.gguf): arch for arch in found}


def _advice_on_relatives(checkpoint: CheckpointSource) -> str:
    """Say which file to copy, if every key and tensor of the model is that of an architecture we have."""
    relatives = () if checkpoint.container == "gguf" else all_architectures()
    near = [arch for arch in relatives if arch.alias_of is None and _is_near(checkpoint, arch)]
    if not near:
        return ""
    nearest = max(near, key=lambda arch: _closeness(arch.keys.config, checkpoint.metadata))
    path = f"src/{nearest.draw.__module__.replace('.', '/')}.py"
    return (
        f" This model's config.json has only keys of {nearest.name}, and its tensors are the same. If both compute the "
        f"same, register it with `alias` (models/registry.py); else copy {path} and change what differs. "
        "CONTRIBUTING.md says how to test it."
    )


def _closeness(keys: KeySet, given: Mapping[str, Any]) -> tuple[int, int, int]:
    """Rank an architecture by how many of these keys it reads, then by how few others it has."""
    return len(keys.read.intersection(given)), -len(keys.read), -len(keys.defaults)


def _is_near(checkpoint: CheckpointSource, arch: Architecture) -> bool:
    """Return whether the architecture has all keys of this config.json, and its models these tensors."""
    if arch.keys.config.undeclared(checkpoint.metadata):
        return False
    try:
        config = read_config(checkpoint, arch.keys, arch.config)
        if checkpoint.tensors:
            bind_weights(checkpoint, config, arch.names)
    except (UnsupportedModel, BadCheckpoint):
        return False
    return True


def _advice_on_text_model(config: Any) -> str:
    """Return what to do with a model of text and images whose text model is supported."""
    model_type = config.get("model_type") if isinstance(config, Mapping) else None
    names = [arch.name for arch in all_architectures() if model_type in arch.model_types]
    return f" Its text model is {names[0]}: save that as a checkpoint, or use its GGUF file." if names else ""


def _by_model_type(metadata: Mapping[str, Any]) -> list[str]:
    """Return the architecture of a config.json that has only a `model_type`."""
    return [arch.name for arch in all_architectures() if metadata.get("model_type") in arch.model_types]


def _agreeing(arch: Architecture, metadata: Mapping[str, Any]) -> Architecture:
    """Return the same, or raise if the `model_type` of config.json belongs to another architecture."""
    model_type = metadata.get("model_type")
    if model_type not in (None, *arch.model_types):
        known = " or ".join(map(repr, arch.model_types))
        raise UnsupportedModel(
            f"config.json has the model_type {brief(model_type)} and the architecture {arch.name}, whose model_type is "
            f"{known}. Correct the one that is wrong."
        )
    return arch


def _refuse_custom_code(auto_map: Any, names: list[str]) -> None:
    """Raise if the checkpoint's own code is of another class than the one we have. Tokenizer code is ignored.

    For a class of the same name transformers too runs its own code by default (`trust_remote_code=False`).
    """
    entries = auto_map if isinstance(auto_map, Mapping) else {"AutoModel": auto_map} if auto_map else {}
    models = {str(key): str(entries[key]) for key in entries if str(key).startswith(("AutoModel", "AutoConfig"))}
    if models and not {entry.rpartition(".")[2] for entry in models.values()} & set(names):
        raise UnsupportedModel(
            f"config.json has auto_map = {brief(auto_map)}: the model needs its own code, which Quire does not run. If "
            "the architecture's standard code is right for this model, remove auto_map."
        )
