"""What a place that models come from must do. Each is one file in sources/, found there, with a `SOURCE`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .names import ModelName

# What is being done, bytes done, bytes in all if they are known. Called often, of several files in turn; the last call
# for each has done == total. With 0 bytes and no total it is a sentence for the user, said once.
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """A progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that a source can give."""

    role: str
    file_name: str
    key: str  # names the unfinished download; the same key is the same bytes, today and tomorrow
    place: str = ""  # where it is, in the source's own words
    digest: str | None = None  # sha256 in hex if it is promised beforehand
    size: int | None = None
    wrapping: int = 0  # bytes on the disk beside the file while it is fetched: the archive that it comes in


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source has under a name. `in_place`: it lies on this disk already and is used where it is."""

    source: str
    files: tuple[Wanted, ...] = ()
    in_place: Path | None = None
    format: str = ""
    quantization: str = ""
    licence: str = ""
    num_parameters: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)


class Source(Protocol):
    """One place that models come from."""

    def claims(self, name: ModelName) -> bool:
        """Is this the source to ask for that name? Decided by the name alone, without a network."""

    def offer(self, name: ModelName) -> Offer:
        """What there is under the name. Raises ModelNotFound or Unreachable."""

    def fetch(self, wanted: Wanted, partial: Path, progress: Progress) -> None:
        """Bring the file's bytes to `partial`, going on with what is there. The store judges the checksum."""


def all_sources() -> tuple[Source, ...]:
    """The `SOURCE` of every file in sources/."""
    folder = importlib.import_module("quire.store.sources")
    names = [f"{folder.__name__}.{each.name}" for each in pkgutil.iter_modules(folder.__path__)]
    return tuple(importlib.import_module(name).SOURCE for name in names)
