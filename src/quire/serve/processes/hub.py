"""The hub of a server with several fronts: it owns the engines and the listening socket, and keeps the fronts alive.

If a front dies, only its own connections break. Its requests are cancelled, its leases released, and another front
takes its place. Every front gives the same answers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from quire.config import Config
from quire.engine.launch import spawn
from quire.serve.access.keys import ApiKeys
from quire.serve.errors import FrontFailed
from quire.serve.generation.routing import Router
from quire.serve.processes.front import FrontOrders
from quire.serve.processes.joining import check_join, has_loaded, stay_joined
from quire.serve.processes.residency_server import ResidencyServer
from quire.serve.processes.server import OnReady, listen, log_throughput, run_until_signal, server_url, uvicorn_config
from quire.serve.processes.shared import SharedQuotaTable
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.models import Models

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
MAX_FAILURES = 5  # starts of a front in a row that end before it is ready
PAUSE_SECONDS = 1.0  # before it is started again
END_SECONDS = 5.0  # beyond the drain, for a front to end


@dataclass(slots=True)
class FrontSeat:
    """A place for a front, and the process that has it."""

    place: int
    name: str = ""
    process: subprocess.Popen[bytes] | None = None
    num_starts: int = 0
    num_failures: int = 0  # in a row
    next_start: float = 0.0


class HubServer:
    """One server with several front processes. `has_library`: clients may change the models of the store."""

    def __init__(
        self, residency: LocalResidency, config: Config, keys: ApiKeys, on_ready: OnReady, has_library: bool
    ) -> None:
        self._residency = residency
        self._config = self._front_config = config
        check_join(config.join)
        self._keys = tuple(keys)
        self._on_ready = on_ready
        self._has_library = has_library
        # Both are checked here, so that a mistake is reported once and not by every front.
        self._uvicorn = uvicorn_config(_no_app, config.serve)
        self._router = Router(config.serve.routes, Models(residency, config))
        self._socket = listen(config.serve)
        self._seats = [FrontSeat(place) for place in range(config.serve.fronts)]
        self._num_signals = 0
        self._is_ready = False
        self._is_running = False

    @property
    def url(self) -> str:
        """Where the fronts listen."""
        return server_url(self._socket, self._uvicorn)

    def run_until_signal(self) -> None:
        """Serve, in the main thread, until a signal. Raises if a model cannot be loaded."""
        run_until_signal(self, self._uvicorn, self._reload if self._router.path else None)

    def stop(self, why: str = "stop was called") -> None:
        """End: the first call drains, the second ends at once. From any thread: the loop looks soon."""
        if not self._num_signals:
            logger.info("shutting down (%s): %d fronts finish their requests", why, len(self._seats))
        self._num_signals += 1

    async def run(self) -> None:
        """Serve until `stop`, or until a model cannot be loaded or a front cannot be started."""
        self._folder = Path(tempfile.mkdtemp(prefix="quire-"))
        self._table = SharedQuotaTable.make(self._folder / "quotas", self._keys, len(self._seats))
        self._copy_routes()
        self._server = ResidencyServer(self._residency, self._folder)
        await self._server.start()
        self._is_running = True
        loading = asyncio.create_task(self._load())
        works = (self._residency.watch(), self._server.watch(), log_throughput(self._residency), self._stay_joined())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await self._watch_fronts(loading)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self._end_fronts()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.close()
            await self._residency.close()
            self._socket.close()
            self._table.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if not loading.cancelled() and (error := loading.exception()) is not None:
            raise error

    async def _stay_joined(self) -> None:
        await stay_joined(
            self._config.join,
            self.url,
            self._config.transfer.role,
            lambda: has_loaded(self._residency.status),
            lambda: self._num_signals > 0,
        )

    async def _load(self) -> None:
        await self._residency.load()
        gc.collect()
        gc.freeze()

    # ── routes ──

    def _reload(self) -> None:
        """Check the file of routes, copy it, and have the fronts read the copy."""
        if self._is_running and self._router.reload():
            self._copy_routes()
            for seat in self._seats:
                if seat.process is not None and self._is_seat_ready(seat):  # else it has yet to read the file
                    seat.process.send_signal(signal.SIGHUP)

    def _copy_routes(self) -> None:
        if self._router.path is not None:
            copy = self._folder / self._router.path.name
            shutil.copyfile(self._router.path, copy)
            serve = replace(self._config.serve, routes=str(copy))
            self._front_config = replace(self._config, serve=serve)

    # ── fronts ──

    async def _watch_fronts(self, loading: asyncio.Task[None]) -> None:
        """Keep every seat taken. Returns when it is time to end."""
        while not self._num_signals:
            if loading.done() and loading.exception() is not None:
                self._num_signals = 2  # requests must not wait for a model that will never be loaded
            for seat in self._seats:
                self._look(seat)
            if not self._is_ready and all(map(self._is_seat_ready, self._seats)):
                self._is_ready = True
                self._on_ready(self.url)
            await asyncio.sleep(LOOK_SECONDS)

    def _is_seat_ready(self, seat: FrontSeat) -> bool:
        return seat.name in self._server.ready_fronts

    def _look(self, seat: FrontSeat) -> None:
        if seat.process is not None and seat.process.poll() is not None:
            self._on_front_death(seat)
        if seat.process is None and time.monotonic() >= seat.next_start:
            self._start(seat)

    def _start(self, seat: FrontSeat) -> None:
        seat.num_starts += 1
        seat.name = f"front-{seat.place}-{seat.num_starts}"
        listener = self._socket.fileno()
        seat.process = spawn("quire.serve.processes.front:main", listener, descriptors=(listener,))
        orders = FrontOrders(
            name=seat.name,
            place=seat.place,
            folder=str(self._folder),
            config=self._front_config,
            keys=self._keys,
            status=self._residency.status,
            has_library=self._has_library,
        )
        assert seat.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already; the next look sees that
            orders.write(seat.process.stdin)

    def _on_front_death(self, seat: FrontSeat) -> None:
        """Free the seat: for the next front at once, or after a pause if this one was never ready."""
        assert seat.process is not None and seat.process.stdin is not None
        seat.process.stdin.close()
        self._table.forget(seat.place)
        was_ready = self._is_seat_ready(seat)
        seat.num_failures = 0 if was_ready else seat.num_failures + 1
        seat.next_start = time.monotonic() + (0.0 if was_ready else PAUSE_SECONDS)
        logger.error("%s ended with code %s; another is started", seat.name, seat.process.returncode)
        if seat.num_failures >= MAX_FAILURES:
            raise FrontFailed(seat.num_failures)
        seat.process = None

    async def _end_fronts(self) -> None:
        """Let the fronts drain. The engines live meanwhile, and answer."""
        num_sent = 0
        deadline = time.monotonic() + self._config.serve.drain_seconds + END_SECONDS
        while alive := [seat.process for seat in self._seats if seat.process and seat.process.poll() is None]:
            if num_sent < max(1, self._num_signals):
                num_sent += 1
                for process in alive:
                    process.terminate()
            if time.monotonic() > deadline:
                for process in alive:
                    process.kill()
            await asyncio.sleep(LOOK_SECONDS)
        for seat in self._seats:
            if seat.process is not None and seat.process.stdin is not None:
                seat.process.stdin.close()


async def _no_app(scope: object, receive: object, send: object) -> None:
    """The hub serves no HTTP itself."""
