"""One model of a server: who it is, what it takes, and its engine while it has one."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

from quire import __version__
from quire.engine.text_side import TextSide
from quire.serve.card import card_of
from quire.serve.engines import Engine, speech_of
from quire.serve.fitting import Fitted, OnGpu
from quire.serve.prompts import Speech
from quire.serve.shelf import Wanted
from quire.types.chat import ModelCard
from quire.weights.checkpoint import open_checkpoint


class Model:
    """Away, on its way, or loaded."""

    def __init__(self, wanted: Wanted, key: str, is_named: bool) -> None:
        self.name = wanted.name
        self.wanted = wanted
        self.key = key  # for the residency: another model may have had this name before
        self.is_named = is_named  # when the server was started
        self.engine: Engine | None = None
        self.path: Path | None = None  # once it was measured
        self.fitted: Fitted | OnGpu | None = None  # the same; None also if its engine is not ours
        self.num_reminded = 0  # restarts of its engine after which it was told how much memory it may have
        self.measuring: asyncio.Task[None] | None = None
        self.facts: ModelCard | None = wanted.card

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

    def read(self, path: Path, max_context: int, load_format: str = "auto") -> Speech:
        """Learn what its files say of it, and how it speaks. In a thread."""
        checkpoint = open_checkpoint(path, load_format)
        speech = speech_of(TextSide.of(checkpoint))
        card, known = card_of(self.name, checkpoint, speech, max_context), self.wanted.card
        if known is not None:  # the store knows better who it is
            card = replace(card, created=known.created, num_bytes=known.num_bytes, digest=known.digest)
        self.facts = card
        return speech
