"""The modules of a sentence-transformers folder: what follows the model itself, such as pooling and dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .container import Container, Tensor
from .errors import CheckpointNotFound, CorruptCheckpoint
from .mapped_file import map_file, read_text
from .safetensors import parse_list, parse_object, read_safetensors

MODULES = "modules.json"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class SentenceModule:
    """One module, in the order in which they are applied."""

    kind: str  # the last word of its class: Transformer, Pooling, Dense, Normalize
    path: str  # its folder; empty: the folder of the model
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    file: Container | None = None  # of the tensors


def read_modules(folder: Path) -> tuple[SentenceModule, ...]:
    """Read modules.json and what it names. Without that file there are none."""
    file = folder / MODULES
    if not file.is_file():
        return ()
    return tuple(_read(folder, file, entry) for entry in parse_list(file, read_text(file), "the file"))


def _read(folder: Path, file: Path, entry: Any) -> SentenceModule:
    path = _path_in(file, entry)
    kind = str(entry.get("type", "")).rpartition(".")[2]
    if kind == "Transformer":
        return SentenceModule(kind, path, {}, {})
    place = folder / path
    config = _file(folder, path, CONFIG)
    found = parse_object(config, read_text(config), "the file") if path and config.is_file() else {}
    weights = _file(folder, path, WEIGHTS)
    if path and (place / "pytorch_model.bin").is_file() and not weights.is_file():
        raise CheckpointNotFound(weights, "this module's weights are missing", "Save the model with safetensors.")
    part = read_safetensors(map_file(weights)) if path and weights.is_file() else None
    return SentenceModule(kind, path, found, {} if part is None else part.tensors, part)


def _file(folder: Path, path: str, name: str) -> Path:
    """A module's file; a stored model has no subfolders."""
    flat = folder / f"{path}.{name}"
    return flat if path and flat.is_file() else folder / path / name


def _path_in(file: Path, entry: Any) -> str:
    """The folder that an entry names. The file is untrusted: it may only name folders in its own one."""
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(path, str) or (path and Path(path).name != path) or path in (".", "..") or "\0" in path:
        raise CorruptCheckpoint(file, "an entry names no folder beside it")
    return path
