"""One model of a server: who it is, what it takes, and its engine while it has one.

Models with the same weights share an engine: what a Modelfile says beside the weights (template, system prompt,
parameters) is applied on the text side, which each model has to itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire import __version__
from quire.config import Config
from quire.engine.client import Client
from quire.engine.model_files import read_model_text
from quire.serve.residency.card import card_of
from quire.serve.residency.engines import Engine
from quire.serve.residency.fitting import Fitted, OnGpu
from quire.serve.residency.shelf import Wanted
from quire.text.model_text import ModelText
from quire.text.preset import FILES
from quire.types.chat import ModelCard
from quire.weights.checkpoint import open_checkpoint

GGUF = ".gguf"
PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one engine, and what is known of the weights that it runs."""

    key: str  # for the residency
    opened_as: str  # the name that its first model had
    path: Path  # of the weights
    fitted: Fitted | OnGpu | None  # None: its engine is not ours
    models: list[Model] = field(default_factory=list)  # that it serves
    client: Client | None = None  # while there is an engine
    num_reminded: int = 0  # restarts of its engine after which it was told how much memory it may have

    @property
    def name(self) -> str:
        """Of its models."""
        return ", ".join(model.name for model in self.models)

    @property
    def first(self) -> Model | None:
        """Of its models that are loaded, the one whose name labels the engine's figures."""
        return next((model for model in self.models if model.engine is not None), None)


class Model:
    """Away, on its way, or loaded."""

    def __init__(self, wanted: Wanted, is_named: bool) -> None:
        self.name = wanted.name
        self.wanted = wanted
        self.is_named = is_named  # when the server was started
        self.slot: Slot | None = None  # once it was measured
        self.path: Path | None = None  # the same
        self.model_text: ModelText | None = None  # once it was loaded
        self.measuring: asyncio.Task[None] | None = None
        self.reading: asyncio.Task[ModelText] | None = None
        self.facts: ModelCard | None = wanted.card
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine | None:
        """What answers its requests, while it is loaded."""
        client = None if self.slot is None else self.slot.client
        if client is None or self.model_text is None:
            return None
        if self._engine is None or self._engine.client is not client:
            self._engine = Engine(client, self.model_text)
        return self._engine

    @property
    def fitted(self) -> Fitted | OnGpu | None:
        """What it takes. None also if its engine is not ours."""
        return None if self.slot is None else self.slot.fitted

    @property
    def is_ready(self) -> bool:
        """Can it answer now?"""
        return self.engine is not None and self.engine.client.is_alive

    @property
    def fingerprint(self) -> str:
        """A mark of this version, these weights and this device: where it is equal, equal seeds give equal answers."""
        ready = None if self.engine is None else self.engine.client.ready
        facts = (__version__, self.name, self.facts and self.facts.digest, ready and ready.device)
        return f"fp_{hashlib.sha256(repr(facts).encode()).hexdigest()[:10]}"

    @property
    def is_read(self) -> bool:
        """Is all known that its files say?"""
        return self.facts is not None and bool(self.facts.architecture)

    def read(self, path: Path, max_context: int, config: Config) -> ModelText:
        """Learn what its files say of it, and how it speaks. In a thread."""
        checkpoint = open_checkpoint(path, config.weights.load_format)
        model_text = read_model_text(checkpoint, config.sampling.sampling_defaults)
        card, known = card_of(self.name, checkpoint, model_text, max_context), self.wanted.card
        if known is not None:  # the store knows better who it is
            card = replace(card, created=known.created, num_bytes=known.num_bytes, digest=known.digest)
        self.facts = card
        return model_text


def weights_path(path: Path) -> Path:
    """What an engine opens: of one GGUF file the file itself, so that the engine outlives the name it began with."""
    is_whole = path.suffix == GGUF and path.is_file() and PART.fullmatch(path.name) is None
    return path.resolve() if is_whole else path


def weights_identity(path: Path) -> str:
    """64 hex digits that are the same for models of the same files, whatever preset lies beside them."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and file.name not in FILES.values()]
    elif part := PART.fullmatch(path.name):
        files = list(path.parent.glob(f"{part['stem']}-*-of-{part['count']}.gguf"))
    else:
        files = [path]
    real = sorted({file.resolve() for file in files})
    facts = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in real]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
