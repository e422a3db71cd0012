"""The models of the store, as a server offers them. The folder may change at any time: it is looked at anew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from quire.store.errors import BadName, ModelNotFound
from quire.store.manifest import Manifest
from quire.store.names import DEFAULT_TAG, ModelName, parse_name
from quire.store.store import Store
from quire.types.chat import ModelCard

_SIZES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to serve. `locate` may take long: it is called in a thread, and may fetch the model first."""

    name: str
    locate: Callable[[], Path]
    aliases: tuple[str, ...] = ()
    identity: str = ""  # another one under the same name is another model
    card: ModelCard | None = None  # what is known of it before it is opened


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is in the store. A request never fetches anything."""

    store: Store

    def find(self, text: str) -> Wanted | None:
        """The model of this name, spelled as the store has it."""
        try:
            if parse_name(text).kind == "path":
                return None
            return self._wanted(self.store.show(text))
        except (BadName, ModelNotFound):
            return None

    def all(self) -> list[Wanted]:
        """Every model, by name."""
        return [self._wanted(manifest) for manifest in self.store.list()]

    def _wanted(self, manifest: Manifest) -> Wanted:
        name = parse_name(f"{manifest.name}:{manifest.tag}")
        shown = spelled(name)
        return Wanted(shown, partial(self._locate, str(name)), aliases(name), manifest.identity, _card(shown, manifest))

    def _locate(self, name: str) -> Path:
        found = self.store.find(name)
        if found is None:
            raise ModelNotFound(f"{name} is not in the store any more.")
        return found


def spelled(name: ModelName) -> str:
    """What clients call a stored model."""
    return str(name).removesuffix(f":{DEFAULT_TAG}")


def aliases(name: ModelName) -> tuple[str, ...]:
    """Other spellings of the same."""
    return (str(name), name.name)


def _card(name: str, manifest: Manifest) -> ModelCard:
    created = 0.0
    with suppress(ValueError):
        created = datetime.fromisoformat(manifest.fetched).timestamp()
    weights = next((file.digest for file in manifest.files if file.role == "weights"), manifest.identity)
    return ModelCard(
        name,
        created=created,
        num_bytes=manifest.size,
        digest=weights,
        format=manifest.format,
        quantization=manifest.quantization.upper(),
        num_parameters=_number(manifest.num_parameters),
        license=manifest.licence,
        is_loaded=False,
    )


def _number(said: str) -> int:
    """A number as models are spoken of: 135M is 135 million."""
    with suppress(ValueError, KeyError, IndexError):
        return int(float(said[:-1]) * _SIZES[said[-1].upper()])
    return 0
