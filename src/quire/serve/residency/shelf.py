"""Models that a server can serve: those of the command line, and those of the store.

The store's folder may change at any time, so it is read again for every question.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from quire.store.errors import BadName, ModelNotFound
from quire.store.manifest import Manifest
from quire.store.names import DEFAULT_TAG, ModelName, parse_name
from quire.store.store import Store

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What the store's manifest says about a model."""

    created: float  # seconds since 1970
    num_bytes: int
    digest: str
    format: str
    quantization: str
    num_parameters: int
    license: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model to serve. `locate` may fetch the model first: call it in a thread."""

    name: str
    locate: Callable[[], Path]
    aliases: tuple[str, ...] = ()
    identity: str = ""  # differs if another model gets the same name
    facts: StoreFacts | None = None


class ModelShelf(Protocol):
    """Models beside those of the command line."""

    def find(self, text: str) -> ModelEntry | None:
        """The model with this name."""

    def all(self) -> list[ModelEntry]:
        """Every model."""


class EmptyShelf:
    """No models beside those of the command line."""

    def find(self, text: str) -> ModelEntry | None:
        """None."""
        return None

    def all(self) -> list[ModelEntry]:
        """An empty list."""
        return []


@dataclass(frozen=True, slots=True)
class StoreShelf:
    """The models in the store. A request never downloads one."""

    store: Store

    def find(self, text: str) -> ModelEntry | None:
        """The model with this name, in any spelling that the store accepts."""
        try:
            if parse_name(text).kind == "path":
                return None
            return self._entry(self.store.show(text))
        except (BadName, ModelNotFound):
            return None

    def all(self) -> list[ModelEntry]:
        """Every model, by name."""
        return [self._entry(manifest) for manifest in self.store.list()]

    def _entry(self, manifest: Manifest) -> ModelEntry:
        name = parse_name(f"{manifest.name}:{manifest.tag}")
        locate = partial(self._locate, str(name))
        return ModelEntry(display_name(name), locate, aliases_of(name), manifest.identity, _facts(manifest))

    def _locate(self, name: str) -> Path:
        path = self.store.find(name)
        if path is None:
            raise ModelNotFound(f"{name} is not in the store any more.")
        return path


def display_name(name: ModelName) -> str:
    """The name of a stored model in lists: without the default tag."""
    return str(name).removesuffix(f":{DEFAULT_TAG}")


def aliases_of(name: ModelName) -> tuple[str, ...]:
    """Other spellings of the name."""
    return (str(name), name.name)


def _facts(manifest: Manifest) -> StoreFacts:
    created = 0.0
    with suppress(ValueError):
        created = datetime.fromisoformat(manifest.fetched).timestamp()
    return StoreFacts(
        created=created,
        num_bytes=manifest.size,
        digest=next((file.digest for file in manifest.files if file.role == "weights"), manifest.identity),
        format=manifest.format,
        quantization=manifest.quantization.upper(),
        num_parameters=_count(manifest.num_parameters),
        license=manifest.licence,
    )


def _count(text: str) -> int:
    """A count of parameters as model names write it: 135M is 135 million."""
    with suppress(ValueError, KeyError, IndexError):
        return int(float(text[:-1]) * _SUFFIXES[text[-1].upper()])
    return 0
