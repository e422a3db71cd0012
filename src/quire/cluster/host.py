"""The body of an actor that looks after one server: it keeps it running, reports its state, and drains it.

The server is not in the actor's process, nor a child of it (guard.py). An actor that Ray restarts after kill -9 adopts
the server that still runs; a server that was killed is started again after a pause that doubles up to 30 s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from quire.cluster.guarded import GuardedServer
from quire.cluster.orders import GatewayOrder, ReplicaOrder, on_devices, write_fleet
from quire.cluster.plan import DRAINING, FAILING, READY, STARTING, STOPPED
from quire.cluster.spec import ModelSpec
from quire.types.errors import QuireError

POLL_SECONDS = 0.3
CHECK_SECONDS = 2.0
SILENT_SECONDS = 30.0  # without an answer of a server that was ready: it is killed and started again
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


@dataclass(slots=True)
class HostReport:
    """What an actor says of its server."""

    state: str = STARTING
    url: str = ""
    node: str = ""
    pid: int = 0  # of the server
    num_starts: int = 0
    num_adopted: int = 0
    error: str = ""  # the last one
    ready_at: float = 0.0  # time.time()


class ServerHost:
    """Runs in an actor; its methods may be called from several threads."""

    def __init__(self, order: ReplicaOrder | GatewayOrder, folder: str, node: str, gpus: Sequence[int] = ()) -> None:
        self._order = order
        self._gpus = gpus
        self._folder = Path(folder)
        if isinstance(order, GatewayOrder):
            write_fleet(self._folder, order.models)
        self._report = HostReport(node=node)
        self._server: GuardedServer | None = None
        self._is_stopping = threading.Event()
        self._has_stopped = threading.Event()
        self._pause, self._retry_at = FIRST_PAUSE, 0.0
        self._answered_at = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def report(self) -> dict[str, Any]:
        """The state of the server."""
        return asdict(self._report)

    def stop(self) -> None:
        """Drain the server and end it. Returns at once."""
        self._is_stopping.set()

    def write_models(self, models: dict[str, ModelSpec]) -> None:
        """At the gateway: write which models have a queue."""
        write_fleet(self._folder, models)

    def _watch(self) -> None:
        while not self._has_stopped.is_set():
            try:
                self._step()
            except QuireError as error:
                self._fail(error.public)
            except Exception as error:
                self._fail(repr(error))
            time.sleep(POLL_SECONDS)

    def _step(self) -> None:
        if self._is_stopping.is_set():
            self._drain()
            return
        server = self._server or self._open_server()
        if server is None:
            return
        if server.is_running:
            self._check(server)
        elif time.monotonic() >= self._retry_at:
            self._begin(server)

    def _open_server(self) -> GuardedServer | None:
        if time.monotonic() < self._retry_at:
            return None
        command = self._order.command(self._report.node, self._folder)
        server = GuardedServer(self._folder, self._order.id, on_devices(command, self._gpus))
        if not server.own():
            self._fail("another actor still looks after this server")
            return None
        self._server = server
        self._begin(server)
        return server

    def _begin(self, server: GuardedServer) -> None:
        """Start or adopt the server. The first start is no failure; a later one follows the end of the last."""
        report = self._report
        if report.num_starts + report.num_adopted and self._retry_at <= self._answered_at:
            self._fail(f"the server ended with {server.exit_code}: {server.last_line()}")
            return
        server.ensure()
        report.url = server.url
        report.num_starts += not server.is_adopted
        report.num_adopted += server.is_adopted
        self._answered_at = time.monotonic()

    def _check(self, server: GuardedServer) -> None:
        report, now = self._report, time.monotonic()
        try:
            status = httpx.get(server.url + self._order.ready_path, timeout=CHECK_SECONDS, trust_env=False).status_code
            self._answered_at = now
        except httpx.HTTPError as error:
            if report.state == READY and now - self._answered_at > SILENT_SECONDS:
                report.error = f"the server did not answer for {SILENT_SECONDS:g} s ({type(error).__name__})"
                server.kill()
            return
        report.pid = server.pids.get("server", 0)
        if status == 200:
            report.ready_at = report.ready_at if report.state == READY else time.time()
            report.state, self._pause = READY, FIRST_PAUSE
        elif report.state == READY:
            report.state = STARTING

    def _fail(self, error: str) -> None:
        """Record an error; the next try follows a pause."""
        self._report.error, self._report.state = error, FAILING
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _drain(self) -> None:
        server, report = self._server, self._report
        if server is not None and server.is_running:
            if report.state != DRAINING:
                server.stop()
            report.state = DRAINING
            return
        if server is not None:
            server.forget()
        report.state = STOPPED
        self._has_stopped.set()
