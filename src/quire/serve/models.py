"""The models that a server serves: each has an engine of its own, loaded beside the loop.

A request may name a model by its name, or by another spelling of it that no other model here has.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from quire.config import Config, ServeConfig
from quire.engine.client import Client, Deliver, Link, Restarts
from quire.engine.launch import ChildEngine, Progress
from quire.engine.messages import Configure, Question
from quire.engine.reading import LoopReader
from quire.engine.text_side import TextSide
from quire.serve.card import card_of
from quire.serve.errors import EngineBusy, ModelLoading, ModelNotServed
from quire.serve.prompts import Speech
from quire.text.parsers.reasoning import reasoning_of
from quire.text.parsers.registry import style_of
from quire.types.chat import ModelCard
from quire.types.errors import InvalidRequest, QuireError
from quire.weights.checkpoint import open_checkpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_SECONDS = 2.0
ANSWER_SECONDS = 10.0  # that an engine may take to answer a question


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to serve. `locate` may take long: it is called in a thread, and may fetch the model first."""

    name: str
    locate: Callable[[], Path]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """What a loaded model consists of."""

    client: Client
    speech: Speech
    card: ModelCard

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Refuse ids that the model does not have."""
        last = self.client.ready.vocab_size - 1
        if tokens and not 0 <= min(tokens) <= max(tokens) <= last:
            raise InvalidRequest(f"{field} has a token that the model does not have: they are 0 to {last}.", field)

    async def ask(self, question: Question) -> Any:
        """What the engine answers to a question, which it does between two steps."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.client.ask(question)), ANSWER_SECONDS)
        except TimeoutError:
            raise EngineBusy(ANSWER_SECONDS) from None


class Opens(Protocol):
    """Where engines are."""

    def open(
        self, wanted: Wanted, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop
    ) -> tuple[Path, Client]:
        """A model's files, and a client of an engine that has loaded them. In a thread; the loop reads the news."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Engines in child processes of this one, which are started again when they die. `entry` is what a child runs."""

    device: str = "cpu"
    entry: str = "quire.engine.process:main"

    def open(
        self, wanted: Wanted, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop
    ) -> tuple[Path, Client]:
        """Find the model, or fetch it, and start an engine."""
        path = wanted.locate()
        configure = Configure(str(path), self.device, config)

        def opens(deliver: Deliver) -> Link:
            reads = partial(LoopReader, loop=loop)
            return ChildEngine(configure, deliver, progress=progress, entry=self.entry, reads=reads)

        return path, Client(opens, Restarts(config.scheduler.max_waiting, loop.call_soon_threadsafe))


class Model:
    """One of them: on its way, or loaded."""

    def __init__(self, wanted: Wanted) -> None:
        self.name = wanted.name
        self.wanted = wanted
        self.engine: Engine | None = None
        self.error: QuireError | None = None
        self.is_settled = asyncio.Event()  # loaded, or failed to be

    @property
    def is_ready(self) -> bool:
        """Can it answer now?"""
        return self.engine is not None and self.engine.client.is_alive

    @property
    def card(self) -> ModelCard:
        """What is known of it."""
        return ModelCard(self.name, is_loaded=False) if self.engine is None else self.engine.card


class Models:
    """All of them. Made and used in the event loop's thread."""

    def __init__(self, wanted: Sequence[Wanted], config: Config, place: Opens, progress: Progress) -> None:
        self._models = {each.name: Model(each) for each in wanted}
        self._config = config
        self._place = place
        self._progress = progress
        self._patience = config.serve.load_patience

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def find(self, name: str) -> Model:
        """The one that a request means."""
        if name in self._models:
            return self._models[name]
        found = [model for model in self if name in model.wanted.aliases]
        if not name and len(self._models) == 1:
            found = list(self)
        if len(found) != 1:
            raise ModelNotServed(name, list(self._models))
        return found[0]

    async def ready(self, name: str) -> tuple[Model, Engine]:
        """The one that a request means, once it is loaded. Raises if that takes too long."""
        model = self.find(name)
        if not model.is_settled.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(model.is_settled.wait(), self._patience)
        if model.error is not None:
            raise model.error
        if model.engine is None:
            raise ModelLoading(model.name, RETRY_SECONDS)
        return model, model.engine

    async def load(self) -> None:
        """Load all, one after another. Raises what the first that cannot be loaded fails of."""
        loop = asyncio.get_running_loop()
        config = config_of_engines(self._config, len(self._models))
        for model in self:
            began = time.monotonic()
            try:
                work = partial(self._open, model, config, loop)
                model.engine = await in_thread(work, lambda engine: engine.client.close())
            except QuireError as error:
                model.error = error
                raise
            finally:
                model.is_settled.set()
            logger.info("%s is loaded, in %.1f s", model.name, time.monotonic() - began)

    async def close(self) -> None:
        """End all engines."""
        engines = [model.engine for model in self if model.engine is not None]
        await asyncio.gather(*(asyncio.to_thread(engine.client.close) for engine in engines))

    def _open(self, model: Model, config: Config, loop: asyncio.AbstractEventLoop) -> Engine:
        """In a thread."""
        path, client = self._place.open(model.wanted, config, self._progress, loop)
        try:
            checkpoint = open_checkpoint(path)
            speech = _speech(TextSide.of(checkpoint))
            return Engine(client, speech, card_of(model.name, checkpoint, speech, client.ready))
        except BaseException:
            client.close()
            raise


def config_of_engines(config: Config, num_models: int) -> Config:
    """What an engine is told: an equal share of the memory, and nothing of the server's secrets."""
    cache = replace(config.cache, memory_share=config.cache.memory_share / max(1, num_models))
    return replace(config, cache=cache, serve=ServeConfig())


def _speech(side: TextSide) -> Speech:
    sources = side.template.sources.values()
    return Speech(side, style_of(sources), reasoning_of(sources))


async def in_thread(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Not one of the loop's own threads: a server that is told to end does not wait until a model is loaded."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            made = work()
        except BaseException as error:
            with suppress(InvalidStateError):
                answer.set_exception(error)
            return
        try:
            answer.set_result(made)
        except InvalidStateError:  # nobody waits for it any more
            undo(made)

    threading.Thread(target=run, name="quire-load", daemon=True).start()
    return await asyncio.wrap_future(answer)
