"""A whole server in this process: real sockets, a real engine in a child process, the event loop in a thread."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from quire.config import load
from quire.engine.client import Client
from quire.observe.record import Record
from quire.serve.access.keys import read_keys
from quire.serve.dialects.contract import Dialect
from quire.serve.processes.hub import HubServer
from quire.serve.processes.server import Serving
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import ModelEntry, ModelShelf
from quire.serve.service import Service
from tests.serve.plain_dialect import PLAIN

SETTINGS = {"port": 0, "num_blocks": 300, "max_context": 1024, "max_rows": 16, "log_level": "warning"}
START_SECONDS = 60


class Running:
    """What a test needs of it."""

    def __init__(self, serving: Serving | HubServer, residency: LocalResidency, service: Service | None) -> None:
        self.url = serving.url
        self.listener = serving._socket
        self.residency = residency
        self.service = service  # None: there are several fronts, and each has its own
        self.records: list[Record] = []
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def client_of(self, name: str) -> Client:
        """The client of a loaded model's engine."""
        model = self.residency.roster.get(name)
        assert model is not None and model.client is not None
        return model.client

    def counters(self) -> Any:
        """Of the first engine."""
        return self.residency.clients()[0].counters()


def link_or_copy(file: Path, target: Path) -> None:
    """The same bytes as another file, without using the disk twice where that can be."""
    try:
        target.hardlink_to(file.resolve())
    except OSError:
        shutil.copyfile(file, target)


def toy(model: Path) -> list[ModelEntry]:
    return [ModelEntry("toy", lambda: model, ("other",))]


@contextmanager
def running(
    model: Path | list[ModelEntry],
    dialects: Sequence[Dialect] = (PLAIN,),
    waits: bool = True,
    launcher: EngineLauncher = EngineLauncher(),  # noqa: B008  # a value
    shelf: ModelShelf | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """`waits`: until all models are loaded. With `fronts` above 1, child processes serve HTTP, in all dialects."""
    config = load({name: value for name, value in (SETTINGS | settings).items() if value is not None}, {})
    is_ready = threading.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvicorn.get_loop_factory()) as runner:
            try:
                runner.run(serving.run())
            finally:
                is_ready.set()

    entries = toy(model) if isinstance(model, Path) else model
    residency = LocalResidency(entries, config, launcher, lambda loading: None, shelf)
    keys = read_keys(config.serve)
    serving: Serving | HubServer
    if config.serve.fronts > 1:
        serving = HubServer(residency, config, keys, lambda url: is_ready.set(), has_library=False)
        uvicorn, made = serving._uvicorn, Running(serving, residency, None)
    else:
        service = Service(config, Models(residency, config), dialects, keys)
        serving = Serving(service, lambda url: is_ready.set())
        uvicorn, made = serving._server.config, Running(serving, residency, service)
        service.observers = (made.records.append,)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        if waits:
            assert is_ready.wait(START_SECONDS), "the server did not start"
            assert all(each.is_ready for each in residency.status.models if each.is_named), "a model was not loaded"
        yield made
    finally:
        made.http.close()
        serving.stop()
        thread.join()
