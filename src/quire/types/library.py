"""What can be done to the models of a server, in our own words: whoever keeps them does it, and a dialect says it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quire.types.preset import Preset


class Step(NamedTuple):
    """What is being done, and how far it is."""

    what: str
    num_done: int = 0  # bytes
    num_bytes: int | None = None  # in all, if that is known
    digest: str = ""  # of the file, if it has one: sha256, 64 hex digits


Progress = Callable[[Step], None]  # may raise, to end what is being done


@dataclass(frozen=True, slots=True)
class Create:
    """Make a model out of another one or of blobs that were sent before, with what the preset says put over it."""

    name: str
    base: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # file name -> sha256, 64 hex digits
    preset: Preset = field(default_factory=Preset)
    has_adapters: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A second name for a model."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget a model."""

    name: str


@dataclass(frozen=True, slots=True)
class Pull:
    """Fetch a model, or bring it up to date."""

    name: str


@dataclass(frozen=True, slots=True)
class Push:
    """Send a model to the registry that its name says."""

    name: str


Change = Create | Copy | Delete | Pull | Push


class Library(Protocol):
    """Who keeps the models of a server. All of it may take long, and is called in threads."""

    def modelfile(self, name: str) -> str:
        """A Modelfile that makes a model again. Raises a QuireError if it is not kept here."""

    def change(self, change: Change, progress: Progress) -> None:
        """Do it. The progress may raise to end it."""

    def has_blob(self, digest: str) -> bool:
        """Is there a file with this digest (64 hex digits)?"""

    def add_blob(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Take in a file, for a model that is made of it later."""
