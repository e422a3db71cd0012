"""A model that another program keeps on this disk. It is used where it lies, and never fetched again."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from .layout import digest_of
from .manifest import Manifest, StoredFile
from .names import ModelName
from .source import Offer


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of it. The digest is known where the other program names files by content."""

    role: str
    file_name: str
    path: Path
    digest: str = ""

    def stored(self) -> StoredFile:
        """The same as a file of a manifest, used where it lies."""
        real = self.path.resolve()
        status = real.stat()
        digest = self.digest or _digest(real, status.st_size, status.st_mtime_ns)
        return StoredFile(self.role, digest, status.st_size, self.file_name, str(real), status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Found:
    """A whole model. `about.in_place`: what to open; None: its files lie there under other names, and need a view."""

    name: ModelName  # that means this model and no other
    keeper: str  # for people: "Ollama", "the hub's cache"
    folder: Path  # where the files are
    files: tuple[FoundFile, ...]
    about: Offer
    remove_hint: str  # how it is removed there

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
        """What a store would write down of it under this name. Small files without a digest are read once."""
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


class Place(Protocol):
    """A folder of another program that keeps models."""

    def find(self, name: ModelName) -> Found | None:
        """The model of this name; it says the hub or a registry. None: it is not there, or not whole."""

    def all(self) -> Iterable[Found]:
        """Every model that is whole."""

    def blob(self, digest: str) -> Path | None:
        """The file with this sha256 (64 hex digits)."""


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, size: int, modified: int) -> str:
    """A server asks at every request: a file that has not changed is read once."""
    return digest_of(path)
