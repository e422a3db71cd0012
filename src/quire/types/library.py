"""Changes to the models of a server (create, copy, delete, pull, push), independent of any API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quire.types.preset import Preset


class Step(NamedTuple):
    """Progress of a change."""

    what: str
    num_done: int = 0  # bytes
    num_bytes: int | None = None  # in total, if known
    digest: str = ""  # of the file, if it has one: sha256, 64 hex digits


Progress = Callable[[Step], None]  # may raise, to end the change


@dataclass(frozen=True, slots=True)
class Create:
    """Create a model from another one or from uploaded blobs, with the preset applied to it."""

    name: str
    base: str = ""
    files: Mapping[str, str] = field(default_factory=dict)  # file name -> sha256, 64 hex digits
    preset: Preset = field(default_factory=Preset)
    has_adapters: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Give a model a second name."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a model."""

    name: str


@dataclass(frozen=True, slots=True)
class Pull:
    """Download a model, or update it."""

    name: str


@dataclass(frozen=True, slots=True)
class Push:
    """Upload a model to the registry in its name."""

    name: str


Change = Create | Copy | Delete | Pull | Push


class Library(Protocol):
    """The store of a server's models. All methods may take long, and are called in threads."""

    def modelfile(self, name: str) -> str:
        """Return a Modelfile that recreates a model. Raises a QuireError if there is no such model."""

    def change(self, change: Change, progress: Progress) -> None:
        """Apply a change. `progress` may raise to end it."""

    def has_blob(self, digest: str) -> bool:
        """Is there a file with this digest (64 hex digits)?"""

    def add_blob(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Store a file, for a model that is created from it later."""
