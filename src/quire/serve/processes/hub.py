"""The hub of a server that is several processes: it has the engines and the listening socket, and keeps fronts alive.

A front that dies takes its own connections with it and no others; its requests are cancelled, and another takes its
place. What is asked of one front is answered as by any other.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quire.config import Config
from quire.engine.client import Client
from quire.engine.hub import Hub
from quire.engine.launch import Progress, spawn
from quire.engine.messages import Configure
from quire.serve.access.keys import Keys
from quire.serve.errors import FrontFailed
from quire.serve.generation.routing import Router
from quire.serve.processes.front import Orders, Served
from quire.serve.processes.server import Ready, listen, run_until_signal, url_of, uvicorn_config
from quire.serve.processes.shared import SharedTable
from quire.serve.residency.engines import Place, in_thread
from quire.serve.residency.fitting import equal_share
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import Wanted
from quire.text.preset import preset_beside, with_num_ctx

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
MAX_FAILURES = 5  # starts of a front in a row that end before it has found the hub
PAUSE_SECONDS = 1.0  # before it is tried again
END_SECONDS = 5.0  # beyond the drain, for a front to end


@dataclass(slots=True)
class Seat:
    """A place for a front, and who has it."""

    place: int
    name: str = ""
    process: subprocess.Popen[bytes] | None = None
    num_starts: int = 0
    num_failures: int = 0  # in a row
    next_start: float = 0.0


class Fronts:
    """One server of many processes."""

    def __init__(
        self, wanted: Sequence[Wanted], config: Config, place: Place, keys: Keys, progress: Progress, ready: Ready
    ) -> None:
        self._wanted = wanted
        self._config = self._config_of_fronts = config
        self._place = place
        self._keys = tuple(keys)
        self._progress = progress
        self._ready = ready
        self._uvicorn = uvicorn_config(_nobody, config.serve)  # said here if it is wrong, not by every front
        self._router = Router(config.serve.routes, Models(wanted, config, place, progress))  # and this too
        self._socket = listen(config.serve)
        self._seats = [Seat(place) for place in range(config.serve.fronts)]
        self._hubs: list[Hub] = []
        self._clients: list[Client] = []
        self._num_signals = 0
        self._is_ready = False

    @property
    def url(self) -> str:
        """Where the fronts listen."""
        return url_of(self._socket, self._uvicorn)

    def run_until_signal(self) -> None:
        """Serve, in the main thread, until a signal. Raises what a model cannot be loaded for."""
        run_until_signal(self, self._uvicorn, self._reload if self._router.path else None)

    def stop(self, why: str = "it was told to") -> None:
        """End: first in good order, the second time at once. From any thread: the loop looks soon."""
        if not self._num_signals:
            logger.info("shutting down (%s): %d fronts let their requests end", why, len(self._seats))
        self._num_signals += 1

    async def run(self) -> None:
        """Serve until `stop`, or until a model cannot be loaded or a front not be started."""
        self._folder = Path(tempfile.mkdtemp(prefix="quire-"))
        self._table = SharedTable.make(self._folder / "quotas", self._keys, len(self._seats))
        self._copy_routes()
        loop = asyncio.get_running_loop()
        self._hubs = [Hub(self._address(number), loop) for number in range(len(self._wanted))]
        loading = asyncio.create_task(self._load())
        try:
            await self._watch(loading)
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await self._end_fronts()
            for hub in self._hubs:
                hub.close()
            await asyncio.gather(*(asyncio.to_thread(client.close) for client in self._clients))
            self._socket.close()
            self._table.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if not loading.cancelled() and (error := loading.exception()) is not None:
            raise error

    # ── engines ──

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        share = equal_share(self._config, len(self._wanted))
        for wanted, hub in zip(self._wanted, self._hubs, strict=True):
            path = await in_thread(wanted.locate)
            config = with_num_ctx(share, preset_beside(path))
            work = partial(self._place.open, wanted.name, path, config, self._progress, loop)
            path, client = await in_thread(work, lambda made: made[1].close())
            self._clients.append(client)
            hub.open(client, Configure(str(path), self._place.device, config))
        gc.collect()
        gc.freeze()

    def _address(self, number: int) -> str:
        return f"ipc://{self._folder}/{number}"

    # ── routes ──

    def _reload(self) -> None:
        """Fronts have a copy of the file of routes, made when it was found right, and read that again."""
        if self._hubs and self._router.reload():
            self._copy_routes()
            for seat in self._seats:
                if seat.process is not None and (self._folder / seat.name).exists():  # else it has yet to read it
                    seat.process.send_signal(signal.SIGHUP)

    def _copy_routes(self) -> None:
        if self._router.path is not None:
            copy = self._folder / self._router.path.name
            shutil.copyfile(self._router.path, copy)
            serve = replace(self._config.serve, routes=str(copy))
            self._config_of_fronts = replace(self._config, serve=serve)

    # ── fronts ──

    async def _watch(self, loading: asyncio.Task[None]) -> None:
        """See to it that every seat is taken. Returns when it is time to end."""
        while not self._num_signals:
            if loading.done() and loading.exception() is not None:
                self._num_signals = 2  # nobody is to wait for what will not come
            for seat in self._seats:
                self._look(seat)
            if not self._is_ready and all((self._folder / seat.name).exists() for seat in self._seats):
                self._is_ready = True
                self._ready(self.url)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, seat: Seat) -> None:
        if seat.process is not None and seat.process.poll() is not None:
            self._on_engine_death(seat)
        if seat.process is None and time.monotonic() >= seat.next_start:
            self._start(seat)

    def _start(self, seat: Seat) -> None:
        seat.num_starts += 1
        seat.name = f"front-{seat.place}-{seat.num_starts}"
        listener = self._socket.fileno()
        seat.process = spawn("quire.serve.processes.front:main", listener, descriptors=(listener,))
        served = (Served(w.name, w.aliases, self._address(number)) for number, w in enumerate(self._wanted))
        orders = Orders(seat.name, seat.place, str(self._folder), self._config_of_fronts, self._keys, tuple(served))
        assert seat.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, as will be seen
            orders.write(seat.process.stdin)

    def _on_engine_death(self, seat: Seat) -> None:
        """Another takes its place: at once, unless it died before it had found the hub."""
        assert seat.process is not None and seat.process.stdin is not None
        seat.process.stdin.close()
        dropped = [hub.remove_front(seat.name) for hub in self._hubs]
        self._table.forget(seat.place)
        seat.num_failures = 0 if all(dropped) else seat.num_failures + 1
        seat.next_start = time.monotonic() + (0.0 if all(dropped) else PAUSE_SECONDS)
        logger.error("%s has ended with the code %s; another is started", seat.name, seat.process.returncode)
        if seat.num_failures >= MAX_FAILURES:
            raise FrontFailed(seat.num_failures)
        seat.process = None

    async def _end_fronts(self) -> None:
        """Let them drain. What they have been asked is answered by the engines, which live meanwhile."""
        num_sent_blocks = 0
        deadline = time.monotonic() + self._config.serve.drain_seconds + END_SECONDS
        while living := [seat.process for seat in self._seats if seat.process and seat.process.poll() is None]:
            if num_sent_blocks < max(1, self._num_signals):
                num_sent_blocks += 1
                for process in living:
                    process.terminate()
            if time.monotonic() > deadline:
                for process in living:
                    process.kill()
            await asyncio.sleep(LOOK_SECONDS)
        for seat in self._seats:
            if seat.process is not None and seat.process.stdin is not None:
                seat.process.stdin.close()


async def _nobody(scope: object, receive: object, send: object) -> None:
    """The hub answers nothing itself."""
