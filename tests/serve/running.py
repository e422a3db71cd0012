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
from quire.observe.record import Record
from quire.serve.access.keys import read_keys
from quire.serve.dialects.contract import Dialect
from quire.serve.processes.server import Serving
from quire.serve.residency.engines import Place
from quire.serve.residency.models import Models, Offers
from quire.serve.residency.shelf import Wanted
from quire.serve.service import Service
from tests.serve.plain_dialect import PLAIN

SETTINGS = {"port": 0, "num_blocks": 300, "max_context": 1024, "max_rows": 16, "log_level": "warning"}
START_SECONDS = 60


class Running:
    """What a test needs of it."""

    def __init__(self, serving: Serving, service: Service) -> None:
        self.url = serving.url
        self.listener = serving._socket
        self.service = service
        self.records: list[Record] = []
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def counters(self) -> Any:
        """Of the first model's engine."""
        engine = next(iter(self.service.models)).engine
        assert engine is not None
        return engine.client.counters()


def link_or_copy(file: Path, target: Path) -> None:
    """The same bytes as another file, without using the disk twice where that can be."""
    try:
        target.hardlink_to(file.resolve())
    except OSError:
        shutil.copyfile(file, target)


def toy(model: Path) -> list[Wanted]:
    return [Wanted("toy", lambda: model, ("other",))]


@contextmanager
def running(
    model: Path | list[Wanted],
    dialects: Sequence[Dialect] = (PLAIN,),
    waits: bool = True,
    place: Place = Place(),  # noqa: B008  # a value
    offers: Offers | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """`waits`: until all models are loaded."""
    config = load({name: value for name, value in (SETTINGS | settings).items() if value is not None}, {})
    is_ready = threading.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=serving._server.config.get_loop_factory()) as runner:
            try:
                runner.run(serving.run())
            finally:
                is_ready.set()

    wanted = toy(model) if isinstance(model, Path) else model
    models = Models(wanted, config, place, lambda loading: None, offers)
    service = Service(config, models, dialects, read_keys(config.serve))
    serving = Serving(service, lambda url: is_ready.set())
    made = Running(serving, service)
    service.observers = (made.records.append,)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert not waits or (is_ready.wait(START_SECONDS) and all(m.is_ready for m in models if m.is_named)), (
            "the server did not start"
        )
        yield made
    finally:
        made.http.close()
        serving.stop()
        thread.join()
