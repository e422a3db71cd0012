"""Engine processes: measuring a model, starting an engine for it in a thread, and asking it questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from quire.config import Config
from quire.engine.client import Client, Deliver, EngineLink, RestartPolicy
from quire.engine.launch import ChildEngine, Progress
from quire.engine.messages import Configure, Question
from quire.engine.need import Budget, Need, Share, budget_of, memory_need
from quire.engine.readers import LoopReader
from quire.serve.errors import EngineBusy

T = TypeVar("T")
ANSWER_SECONDS = 10.0  # that an engine may take to answer a question


@dataclass(frozen=True, slots=True)
class EngineLauncher:
    """Starts engines as child processes, and restarts them when they die. `entry` is the child's main function."""

    device: str = "auto"
    entry: str = "quire.engine.process:main"

    def budget(self, config: Config) -> Budget:
        """The memory that all engines share."""
        return budget_of(self.device, config)

    def measure(self, path: Path, config: Config) -> Need | Share:
        """The memory that a model needs, from its header. Call it in a thread."""
        return memory_need(path, self.device, config)

    def open(self, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop) -> Client:
        """Start an engine and wait until it is ready. Call it in a thread; `loop` reads the engine's messages."""
        configure = Configure(str(path), self.device, config)

        def open_link(deliver: Deliver) -> EngineLink:
            make_reader = partial(LoopReader, loop=loop)
            return ChildEngine(configure, deliver, progress=progress, entry=self.entry, make_reader=make_reader)

        return Client(open_link, RestartPolicy(config.scheduler.max_waiting, loop.call_soon_threadsafe))


async def ask_engine(client: Client, question: Question) -> Any:
    """The engine's answer, given between two steps. Raises EngineBusy if it takes too long."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(client.ask(question)), ANSWER_SECONDS)
    except TimeoutError:
        raise EngineBusy(ANSWER_SECONDS) from None


async def in_thread(work: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
    """Run `work` in a daemon thread, so that a server that ends does not wait until a model is loaded.

    If the caller is cancelled, `undo` gets the result.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            with suppress(InvalidStateError):
                answer.set_exception(error)
            return
        try:
            answer.set_result(result)
        except InvalidStateError:  # the caller was cancelled
            undo(result)

    threading.Thread(target=run, name="quire-load", daemon=True).start()
    return await asyncio.wrap_future(answer)
