"""The models that a server knows by name, and the engine slot of each.

Models with the same weights share a slot, and so an engine: what a Modelfile adds to the weights (template, system
prompt, parameters) is applied outside the engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quire.engine.client import Client
from quire.serve.errors import ModelNotServed
from quire.serve.residency.memory import GpuFit, HostFit
from quire.serve.residency.shelf import ModelEntry, ModelShelf
from quire.text.preset import FILES

GGUF = ".gguf"
PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


@dataclass(slots=True, eq=False)
class ResidentModel:
    """One model of a server, loaded or not."""

    entry: ModelEntry
    is_named: bool  # on the command line
    slot: EngineSlot | None = None  # once it was measured
    path: Path | None = None  # the same
    was_used: bool = False  # a request has used it
    measuring: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name in lists."""
        return self.entry.name

    @property
    def client(self) -> Client | None:
        """The client of its engine, while it is loaded. None too if only others that share the engine were used."""
        return self.slot.client if self.slot is not None and self.was_used else None


@dataclass(slots=True, eq=False)
class EngineSlot:
    """A place for one engine, and the models that it serves."""

    key: str  # in the policy
    path: Path  # of the weights
    fit: HostFit | GpuFit
    has_draft: bool = False  # its engine has the draft model of the settings, if there is one
    models: list[ResidentModel] = field(default_factory=list)
    client: Client | None = None  # while there is an engine
    num_restarts: int = 0  # of the engine, after which its memory was set again

    @property
    def names(self) -> str:
        """The names of its models."""
        return ", ".join(model.name for model in self.models)

    @property
    def first(self) -> ResidentModel | None:
        """The first of its loaded models, whose name labels the engine's metrics."""
        return next((model for model in self.models if model.client is not None), None)


class Roster:
    """Names to models. `on_forgotten` is called for each model that is no longer served."""

    def __init__(
        self, entries: Sequence[ModelEntry], shelf: ModelShelf, on_forgotten: Callable[[ResidentModel], None]
    ) -> None:
        self._models = {entry.name: ResidentModel(entry, is_named=True) for entry in entries}
        self._shelf = shelf
        self._on_forgotten = on_forgotten

    def __iter__(self) -> Iterator[ResidentModel]:
        return iter(tuple(self._models.values()))

    def get(self, name: str) -> ResidentModel | None:
        """The model of exactly this name, if it was named or requested."""
        return self._models.get(name)

    def find(self, name: str) -> ResidentModel:
        """The model that a request means: by its name, by an alias that only one model has, or from the shelf."""
        named = [model for model in self if model.is_named]
        found = [model for model in named if model.name == name] or [
            model for model in named if name in model.entry.aliases or (not name and len(named) == 1)
        ]
        if len(found) == 1:
            return found[0]
        entry = self._shelf.find(name) if name else self._only_entry(named)
        if entry is None:
            others = (each.name for each in self._shelf.all())
            raise ModelNotServed(name, list(dict.fromkeys((*(each.name for each in named), *others, *self._models))))
        known = self._models.get(entry.name)
        if known is None or known.entry.identity != entry.identity:
            if known is not None:
                self.forget(known)  # its requests finish on the old model, which is then unloaded
            self._models[entry.name] = ResidentModel(entry, is_named=False)
        return self._models[entry.name]

    async def refresh(self) -> dict[str, ModelEntry]:
        """The shelf's entries by name. Models that were removed from the shelf, or replaced there, are forgotten."""
        entries = {entry.name: entry for entry in await asyncio.to_thread(self._shelf.all)}
        for model in self:
            if model.is_named:
                continue
            entry = entries.get(model.name) or await asyncio.to_thread(self._shelf.find, model.name)
            if entry is None or entry.identity != model.entry.identity:
                self.forget(model)
        return entries

    def forget(self, model: ResidentModel) -> None:
        """Stop serving a model."""
        if self._models.get(model.name) is model:
            del self._models[model.name]
        self._on_forgotten(model)

    def _only_entry(self, named: Sequence[ResidentModel]) -> ModelEntry | None:
        """For a request without a model: the shelf's entry, if there is one model in all."""
        entries = [] if named else self._shelf.all()
        return entries[0] if len(entries) == 1 else None


def weights_path(path: Path) -> Path:
    """What an engine opens. A single GGUF file is resolved, so that the engine outlives the name it was loaded by."""
    is_whole = path.suffix == GGUF and path.is_file() and PART.fullmatch(path.name) is None
    return path.resolve() if is_whole else path


def weights_identity(path: Path) -> str:
    """64 hex digits, equal for models of the same files whatever preset lies beside them."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and file.name not in FILES.values()]
    elif part := PART.fullmatch(path.name):
        files = list(path.parent.glob(f"{part['stem']}-*-of-{part['count']}.gguf"))
    else:
        files = [path]
    real = sorted({file.resolve() for file in files})
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in real]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
