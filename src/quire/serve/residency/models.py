"""The models of a server as its handlers see them: an engine and a text side for each request, and cards for lists.

Engines are residency's; what a model's files say (tokenizer, template, metadata) is read here, once for each model, in
every process that serves HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire import __version__
from quire.config import Config
from quire.engine.client import Client
from quire.engine.messages import Counters, Question
from quire.engine.model_files import read_model_text
from quire.serve.errors import NotLoaded
from quire.serve.residency.card import card_of_files, card_of_record
from quire.serve.residency.contract import Gone, ModelRecord, ModelStatus, Residency, ResidencyStatus
from quire.serve.residency.engines import ask_engine, in_thread
from quire.text.model_text import ModelText
from quire.types.chat import ModelCard
from quire.types.errors import InvalidRequest
from quire.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The model that answers a request."""

    name: str
    digest: str | None
    device: str | None  # None: it is not loaded

    @property
    def fingerprint(self) -> str:
        """Equal for equal versions, weights and devices: there, equal seeds give equal answers."""
        facts = (__version__, self.name, self.digest, self.device)
        return f"fp_{hashlib.sha256(repr(facts).encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True)
class ModelEngine:
    """The engine and the text side of a loaded model."""

    client: Client
    model_text: ModelText

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Refuse ids that are not in the vocabulary."""
        last = self.client.ready.vocab_size - 1
        if tokens and not 0 <= min(tokens) <= max(tokens) <= last:
            raise InvalidRequest(f"{field} has a token that the model does not have: they are 0 to {last}.", field)

    async def ask(self, question: Question) -> Any:
        """The engine's answer, given between two steps."""
        return await ask_engine(self.client, question)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model's files say."""

    text: ModelText
    card: ModelCard


@dataclass(frozen=True, slots=True)
class _Reading:
    """Files that are being read, or were."""

    identity: str
    path: str
    task: asyncio.Task[ModelFiles]


class Models:
    """Used in the event loop's thread."""

    def __init__(self, residency: Residency, config: Config) -> None:
        self._residency = residency
        self._config = config
        self._readings: dict[str, _Reading] = {}  # by the model's name
        self._observed: dict[str, Client] = {}  # by the model's name; may have been closed since
        self._used_names: set[str] = set()  # that requests have used: names and aliases
        self._early: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[ModelStatus]:
        return iter(self.status.models)

    @property
    def status(self) -> ResidencyStatus:
        """Which models can answer now."""
        return self._residency.status

    def knows(self, name: str) -> bool | None:
        """May a request use this name? None: only the hub can tell."""
        return self._residency.knows(name)

    # ── requests ──

    @asynccontextmanager
    async def using(
        self, name: str, keep_alive: float | None = None, gone: Gone | None = None
    ) -> AsyncIterator[tuple[ModelIdentity, ModelEngine]]:
        """The model that a request names, loaded until the block ends. Raises if that takes too long.

        `keep_alive`: seconds that it stays loaded afterwards. `gone`: done when the client has disconnected.
        """
        if name not in self._used_names:
            self._read_early(name)
        lease = await self._residency.acquire(name, gone)
        try:
            files = await self._files(lease.name, lease.identity, str(lease.path))
            self._used_names.add(name)
            digest = files.card.digest if lease.facts is None else lease.facts.digest
            model = ModelIdentity(lease.name, digest, lease.client.ready.device)
            yield model, ModelEngine(lease.client, files.text)
        finally:
            self._residency.release(lease, keep_alive)

    async def observe(self, name: str) -> tuple[str, Client]:
        """The name and the engine of a loaded model, for questions that do not keep it loaded. Raises if it is not."""
        record = await self._residency.record(name)
        if record.engine is None:
            self._observed.pop(record.name, None)
            raise NotLoaded(record.name)
        client = self._observed.get(record.name)
        if client is None or not client.is_alive:
            async with self.using(record.name) as (_, engine):
                client = self._observed[record.name] = engine.client
        return record.name, client

    async def unload(self, name: str) -> ModelIdentity:
        """Unload a model: now if it is idle, otherwise when its last request has ended."""
        record = await self._residency.unload(name)
        device = None if record.engine is None else record.engine.ready.device
        return ModelIdentity(record.name, (await self._card(record)).digest or None, device)

    async def forget(self, name: str) -> None:
        """Stop serving a model that is about to be deleted, unless it is on the command line."""
        await self._residency.forget(name)

    # ── reports ──

    async def cards(self) -> list[ModelCard]:
        """All models, loaded or not: those on the command line first, then the store's."""
        records = await self._records()
        listed = [each for each in records if each.is_named or each.is_in_store or each.engine is not None]
        return [await self._card(record) for record in listed]

    async def running_cards(self) -> list[ModelCard]:
        """The loaded models, with the memory that each uses now."""
        counters = await self._residency.counters()
        cards = []
        for record in await self._records():
            if (engine := record.engine) is not None:
                found = counters.get(engine.shared_with or record.name)
                used_bytes = 0 if found is None else engine.used_bytes(found)
                cards.append(replace(await self._card(record), used_bytes=used_bytes))
        return cards

    async def card(self, name: str) -> ModelCard:
        """Everything about one model, loaded or not."""
        record = await self._residency.record(name)
        await self._files(record.name, record.identity, record.path)
        return await self._card(record)

    async def memory(self) -> dict[str, Any]:
        """The memory budget, what each engine may use of it, and how many were loaded and unloaded."""
        report = await self._residency.memory()
        return {
            f"budget_{report.unit}": report.budget,
            f"taken_{report.unit}": dict(report.reserved),
            "num_loads": report.num_loads,
            "num_unloads": report.num_unloads,
        }

    async def engines(self) -> dict[str, dict[str, Any] | None]:
        """For each model that was requested, the facts of its engine; None if it is not loaded."""
        requested = [record for record in await self._records() if record.was_requested]
        return {record.name: await self._engine_facts(record) for record in requested}

    async def counters_by_model(self) -> dict[str, Counters]:
        """The counters of every loaded model whose engine answers: of models that share an engine, the same."""
        counters = await self._residency.counters()
        engines = {record.name: record.engine for record in await self._records() if record.engine is not None}
        labels = {name: engine.shared_with or name for name, engine in engines.items()}
        return {name: counters[label] for name, label in labels.items() if label in counters}

    async def counters(self) -> dict[str, Counters]:
        """The counters of every engine that answers, by the first model that it serves."""
        return await self._residency.counters()

    # ── life ──

    async def load(self) -> None:
        """Load the models of the command line, and read their files meanwhile. Raises if one cannot be loaded."""
        for model in self:
            if model.is_named:
                self._read_early(model.name)
        await self._residency.load()
        for model in self:
            if model.is_named and model.is_loaded:
                async with self.using(model.name):
                    pass  # its files are read now

    async def watch(self) -> None:
        """Move memory to the engines that need it, until cancelled."""
        await self._residency.watch()

    async def close(self) -> None:
        """End all engines."""
        await self._residency.close()

    # ── files ──

    async def _records(self) -> list[ModelRecord]:
        """All models. The files of those that are no longer served are dropped."""
        records = await self._residency.records()
        for name in self._readings.keys() - {record.name for record in records}:
            del self._readings[name]
        return records

    async def _card(self, record: ModelRecord) -> ModelCard:
        """Of a loaded model with all that its files say; of another as far as that is known already."""
        reading = self._readings.get(record.name)
        is_current = reading is not None and (reading.identity, reading.path) == (record.identity, record.path)
        if record.engine is None and not is_current:
            return card_of_record(record)
        return card_of_record(record, (await self._files(record.name, record.identity, record.path)).card)

    async def _engine_facts(self, record: ModelRecord) -> dict[str, Any] | None:
        if record.engine is None:
            return None
        defaults = (await self._card(record)).sampling_defaults
        sourced = {name: {"value": value, "source": defaults.sources[name]} for name, value in defaults.values.items()}
        return asdict(record.engine.ready) | {"sampling_defaults": sourced}

    async def _files(self, name: str, identity: str, path: str) -> ModelFiles:
        """Read a model's files, once for all callers."""
        reading = self._readings.get(name)
        if reading is None or (reading.identity, reading.path) != (identity, path):
            task = asyncio.create_task(in_thread(partial(read_files, name, Path(path), self._config)))
            self._readings[name] = reading = _Reading(identity, path, task)
        try:
            return await asyncio.shield(reading.task)
        except Exception:
            if self._readings.get(name) is reading:
                del self._readings[name]  # the next request tries again
            raise

    def _read_early(self, name: str) -> None:
        """Begin to read a model's files while its engine is loaded."""

        async def read() -> None:
            with suppress(Exception):  # the caller that needs the files gets the error
                record = await self._residency.record(name)
                await self._files(record.name, record.identity, record.path)

        task = asyncio.create_task(read())
        self._early.add(task)
        task.add_done_callback(self._early.discard)


def read_files(name: str, path: Path, config: Config) -> ModelFiles:
    """What the files of a model say. Call it in a thread."""
    checkpoint = open_checkpoint(path, config.weights.load_format)
    text = read_model_text(checkpoint, config.sampling.sampling_defaults)
    return ModelFiles(text, card_of_files(name, checkpoint, text))
