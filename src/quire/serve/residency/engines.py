"""Engines for a server: where they are, and how one is opened in a thread beside the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from quire.config import Config
from quire.engine.client import Client, Deliver, Link, Restarts
from quire.engine.launch import ChildEngine, Progress
from quire.engine.messages import Configure, Question
from quire.engine.need import Budget, Need, Share, budget_of, measure
from quire.engine.reading import LoopReader
from quire.serve.errors import EngineBusy
from quire.text.model_text import ModelText
from quire.types.errors import InvalidRequest

T = TypeVar("T")
ANSWER_SECONDS = 10.0  # that an engine may take to answer a question


@dataclass(frozen=True, slots=True)
class Engine:
    """What a loaded model consists of."""

    client: Client
    model_text: ModelText

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Refuse ids that the model does not have."""
        last = self.client.ready.vocab_size - 1
        if tokens and not 0 <= min(tokens) <= max(tokens) <= last:
            raise InvalidRequest(f"{field} has a token that the model does not have: they are 0 to {last}.", field)

    async def ask(self, question: Question) -> Any:
        """What the engine answers to a question, which it does between two steps."""
        return await ask(self.client, question)


class Opens(Protocol):
    """Where engines are."""

    def budget(self, config: Config) -> Budget:
        """What all models together may take."""
        ...

    def measure(self, path: Path, config: Config) -> Need | Share | None:
        """What a model will take. In a thread. None: its engine is someone else's to start and to end."""
        ...

    def open(
        self, name: str, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop
    ) -> tuple[Path, Client]:
        """Where a model's files are, and a client of an engine that has loaded them. In a thread; the loop reads."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Engines in child processes of this one, which are started again when they die. `entry` is what a child runs."""

    device: str = "auto"
    entry: str = "quire.engine.process:main"

    def budget(self, config: Config) -> Budget:
        """Of the device's memory."""
        return budget_of(self.device, config)

    def measure(self, path: Path, config: Config) -> Need | Share | None:
        """From the model's header."""
        return measure(path, self.device, config)

    def open(
        self, name: str, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop
    ) -> tuple[Path, Client]:
        """Start an engine."""
        configure = Configure(str(path), self.device, config)

        def opens(deliver: Deliver) -> Link:
            reads = partial(LoopReader, loop=loop)
            return ChildEngine(configure, deliver, progress=progress, entry=self.entry, reads=reads)

        return path, Client(opens, Restarts(config.scheduler.max_waiting, loop.call_soon_threadsafe))


async def ask(client: Client, question: Question) -> Any:
    """What an engine answers to a question. Raises EngineBusy if that takes too long."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(client.ask(question)), ANSWER_SECONDS)
    except TimeoutError:
        raise EngineBusy(ANSWER_SECONDS) from None


async def in_thread(work: Callable[[], T], undo: Callable[[T], None] = lambda made: None) -> T:
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
