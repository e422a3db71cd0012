"""A whole gateway in this process, with its event loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from quire.config import load
from quire.gateway.server.service import GatewayService
from quire.gateway.server.serving import GatewayServing
from quire.gateway.upstreams.declared import UpstreamSpec, spec_of_url
from quire.observe.record import Record
from quire.serve.access.keys import read_keys
from quire.serve.http.app import all_dialects
from quire.text.model_text import ModelText
from tests.waiting import wait_until

SETTINGS = {
    **{"port": 0, "log_level": "warning", "check_seconds": 0.2, "load_seconds": 0.05, "wait_seconds": 1.0},
    "drain_seconds": 1.0,
}


def no_text(name: str) -> ModelText:
    raise OSError(f"{name} is not in a store")


class RunningGateway:
    """What a test needs of it."""

    def __init__(self, serving: GatewayServing) -> None:
        self.serving = serving
        self.service = serving.service
        self.url = serving.url
        self.records: list[Record] = []
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def upstreams(self) -> dict[str, dict[str, Any]]:
        """The upstreams by name."""
        return {each["name"]: each for each in self.http.get("/v1/upstreams").json()["upstreams"]}

    def record_of(self, answer: httpx.Response) -> Record:
        """The record of a request, which is complete shortly after its answer."""
        own = answer.headers["x-request-id"]
        wait_until(lambda: any(record.request_id == own for record in self.records))
        return next(record for record in self.records if record.request_id == own)

    def wait_ready(self, count: int, seconds: float = 60) -> None:
        """Wait until so many upstreams get requests."""
        wait_until(lambda: sum(u["state"] == "ready" for u in self.upstreams().values()) == count, seconds)


@contextmanager
def running_gateway(
    upstreams: Sequence[str | UpstreamSpec] = (), waits: bool = True, read_text: Any = no_text, **settings: Any
) -> Iterator[RunningGateway]:
    """`waits`: until all upstreams are ready."""
    config = load({name: value for name, value in (SETTINGS | settings).items() if value is not None}, {})
    keys = read_keys(config.serve, keeps_budgets=True)
    specs = [spec_of_url(each) if isinstance(each, str) else each for each in upstreams]
    service = GatewayService(config, all_dialects(), keys, specs, read_text)
    serving = GatewayServing(service)
    gateway = RunningGateway(serving)
    service.observers = (gateway.records.append,)

    def run() -> None:
        with asyncio.Runner(loop_factory=serving._server.config.get_loop_factory()) as runner:
            runner.run(serving.run())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        if waits:
            wait_until(
                lambda: all(each.is_ready for each in service.upstreams) and len(service.upstreams) >= len(specs)
            )
        yield gateway
    finally:
        gateway.http.close()
        serving.stop()
        serving.stop()
        thread.join()
