"""The contract of a source of models. Each file in sources/ has one, named `SOURCE`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .names import ModelName

# What is being done, bytes done, and bytes in total if known. Called often, for several files in turn; the last call
# for each file has done == total. A call with 0 bytes and no total is a message for the user.
Progress = Callable[[str, int, int | None], None]


def no_progress(what: str, done: int, total: int | None) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a source offers."""

    role: str
    file_name: str
    key: str  # names the unfinished download: equal keys mean equal content, also across processes
    location: str = ""  # where it is; only the source reads this
    digest: str | None = None  # sha256 in hex, if the source states it
    size: int | None = None
    archive_size: int = 0  # bytes of the archive that the file comes in, on the disk while it is fetched


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """What a source has under a name. `in_place`: the model is on this disk and is used there."""

    source: str
    files: tuple[SourceFile, ...] = ()
    in_place: Path | None = None
    format: str = ""
    quantization: str = ""
    licence: str = ""
    num_parameters: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)


class Source(Protocol):
    """Somewhere that models come from."""

    def claims(self, name: ModelName) -> bool:
        """Is this the source for that name? Decided by the name alone, without the network."""

    def offer(self, name: ModelName) -> ModelOffer:
        """What the source has under this name. Raises ModelNotFound or Unreachable."""

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download the file to `partial`, resuming what is there. The store verifies the checksum."""


def all_sources() -> tuple[Source, ...]:
    """The `SOURCE` of every file in sources/."""
    folder = importlib.import_module("quire.store.sources")
    names = [f"{folder.__name__}.{each.name}" for each in pkgutil.iter_modules(folder.__path__)]
    return tuple(importlib.import_module(name).SOURCE for name in names)
