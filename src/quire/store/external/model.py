"""A model that another program keeps on this disk, and the contract of the folders that have such models."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from quire.store.layout import digest_of
from quire.store.manifest import Manifest, StoredFile
from quire.store.names import ModelName
from quire.store.source import ModelOffer


@dataclass(frozen=True, slots=True)
class ExternalFile:
    """One file of an external model. Its digest is known if the other program names files by content."""

    role: str
    file_name: str
    path: Path
    digest: str = ""

    def stored(self) -> StoredFile:
        """The entry of a manifest for this file, used in place."""
        real = self.path.resolve()
        status = real.stat()
        digest = self.digest or _digest(real, status.st_size, status.st_mtime_ns)
        return StoredFile(self.role, digest, status.st_size, self.file_name, str(real), status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ExternalModel:
    """A complete model. `about.in_place` is what to open; None: the files have other names there and need a view."""

    name: ModelName  # resolves to this model and no other
    program: str  # for people: "Ollama", "the hub's cache"
    folder: Path
    files: tuple[ExternalFile, ...]
    about: ModelOffer
    remove_hint: str  # the command that removes it there

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.path.stat().st_size for file in self.files)

    @property
    def modified(self) -> str:
        """When its newest file was written: ISO 8601, UTC."""
        newest = max(file.path.stat().st_mtime for file in self.files)
        return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")

    def manifest(self, name: ModelName) -> Manifest:
        """A manifest for this model under a name. Files without a known digest are read for it, once."""
        return Manifest(
            name=name.untagged,
            tag=name.tag,
            files=tuple(file.stored() for file in self.files),
            source=self.about.source,
            fetched=self.modified,
            format=self.about.format,
            quantization=self.about.quantization,
            num_parameters=self.about.num_parameters,
        )


class ExternalFolder(Protocol):
    """A folder in which another program keeps models."""

    def find(self, name: ModelName) -> ExternalModel | None:
        """The model with this name, which has a host. None: it is not there, or not complete."""

    def all(self) -> Iterable[ExternalModel]:
        """Every complete model."""

    def blob(self, digest: str) -> Path | None:
        """The file with this sha256 (64 hex digits)."""


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, size: int, modified: int) -> str:
    """The sha256 of a file. Cached by size and time, because a server needs it at every request."""
    return digest_of(path)
