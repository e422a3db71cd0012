"""A server's life: it listens at once, loads models meanwhile, and drains before it ends.

After the first SIGTERM or SIGINT it accepts no more connections, and accepted requests have some time to finish. The
second ends it at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import uvicorn
from starlette.types import ASGIApp

from quire.config import BadSetting, ServeConfig
from quire.engine.messages import Counters
from quire.observe.throughput import INTERVAL_SECONDS, Throughput
from quire.serve.http.app import make_asgi_app
from quire.serve.http.connection import connection_for
from quire.serve.processes.joining import check_join, has_loaded, stay_joined
from quire.serve.service import Service

logger = logging.getLogger(__name__)
throughput_logger = logging.getLogger("quire.throughput")

BACKLOG = 2048
MAX_FILES = 1 << 16
KEEP_ALIVE_SECONDS = 75  # longer than proxies have, so that they close first

OnReady = Callable[[str], None]  # called with the server's URL when the models of the command line are loaded


class QuietServer(uvicorn.Server):
    """Without uvicorn's signal handling, which would raise the signal again: the exit code would not be 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ServerShutdown(NamedTuple):
    """Why a server ends, since when, and how many requests ran then."""

    why: str
    since: float
    num_running: int


class Serving:
    """A server in this process. It listens as soon as it is made, and answers while `run` runs."""

    def __init__(
        self, service: Service, on_ready: OnReady = lambda url: None, listener: socket.socket | None = None
    ) -> None:
        self._service = service
        self._on_ready = on_ready
        check_join(service.config.join)
        self._server = QuietServer(uvicorn_config(make_asgi_app(service), service.config.serve))
        self._socket = listen(service.config.serve) if listener is None else listener
        self._shutdown: ServerShutdown | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return server_url(self._socket, self._server.config)

    def run_until_signal(self) -> None:
        """Serve, in the main thread, until a signal. Raises if a model cannot be loaded."""
        router = self._service.router
        run_until_signal(self, self._server.config, router.reload if router.path else None)

    async def run(self) -> None:
        """Serve until `stop`, or until a model cannot be loaded."""
        loading = asyncio.create_task(self._load())
        works = (self._service.models.watch(), self._log_throughput(), self._stay_joined())
        beside = [asyncio.create_task(work) for work in works]
        try:
            await self._server.serve([self._socket])
        finally:
            loading.cancel()
            for task in beside:
                task.cancel()
            await asyncio.gather(loading, *beside, return_exceptions=True)
            await self._service.models.close()
            self._log_end()
        if not loading.cancelled() and (error := loading.exception()) is not None:
            raise error

    def stop(self, why: str = "stop was called") -> None:
        """End: the first call drains, the second ends at once. From any thread: the loop looks every 0.1 s."""
        if self._server.should_exit:
            self._server.force_exit = True
        else:
            self._shutdown = ServerShutdown(why, time.monotonic(), self._service.num_running)
            seconds = self._service.config.serve.drain_seconds
            logger.info("shutting down (%s): %d requests have %g s to finish", why, self._shutdown.num_running, seconds)
        self._service.is_draining = self._server.should_exit = True

    async def _stay_joined(self) -> None:
        service = self._service
        await stay_joined(
            service.config.join,
            self.url,
            service.config.transfer.role,
            lambda: has_loaded(service.models.status),
            lambda: service.is_draining,
        )

    async def _log_throughput(self) -> None:
        await log_throughput(self._service.models)

    def _log_end(self) -> None:
        if self._shutdown is None:
            return
        why, since, num_running = self._shutdown
        num_cut = min(self._service.num_cut, num_running)
        line = "shut down (%s) after %.1f s: %d requests finished, %d were cut off"
        facts = {"reason": why, "drained": num_running - num_cut, "cut_off": num_cut}
        seconds = time.monotonic() - since
        logger.info(line, why, seconds, facts["drained"], num_cut, extra=facts)

    async def _load(self) -> None:
        try:
            await self._service.models.load()
        except BaseException:
            self._server.should_exit = self._server.force_exit = True
            raise
        gc.collect()
        gc.freeze()  # these objects stay: no stream should wait while the collector scans them again
        self._on_ready(self.url)


class CountsEngines(Protocol):
    """Where the counters of all engines come from."""

    async def counters(self) -> dict[str, Counters]: ...


async def log_throughput(engines: CountsEngines) -> None:
    """Log the throughput of every loaded engine at intervals, until cancelled."""
    lines: dict[str, Throughput] = {}
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        for name, counters in (await engines.counters()).items():
            lines.setdefault(name, Throughput(name, throughput_logger)).log(counters, INTERVAL_SECONDS)


class Stoppable(Protocol):
    """A server that runs until `stop` is called."""

    async def run(self) -> None: ...
    def stop(self, why: str = ...) -> None: ...


def run_until_signal(server: Stoppable, config: uvicorn.Config, reload: Callable[[], object] | None = None) -> None:
    """Run a server in the main thread. SIGHUP calls `reload`; without one it ends the process."""
    _allow_files()
    ends = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda number, _: server.stop(signal.Signals(number).name)) for each in ends}
    if reload is not None:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: reload())
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(server.run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def server_url(listener: socket.socket, config: uvicorn.Config) -> str:
    """The URL of a server with this listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.is_ssl else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _allow_files() -> None:
    """Raise the limit of open files: every connection is one, and the default is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if 0 <= soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def listen(serve: ServeConfig) -> socket.socket:
    """The listening socket of a server."""
    if not serve.host:  # the system would listen at every address of this machine
        raise BadSetting("host is empty: give an address, or 0.0.0.0 for all addresses of this machine.", field="host")
    try:
        serve.host.encode("idna")
    except UnicodeError:
        raise BadSetting(
            f"host is {serve.host!r}, which is neither an address nor a host name.", field="host"
        ) from None
    family = socket.AF_INET6 if ":" in serve.host else socket.AF_INET
    try:
        return socket.create_server((serve.host, serve.port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"{serve.host}, port {serve.port}"
        raise BadSetting(f"The server cannot listen at {where}: {error.strerror or error}.", field="port") from None


def uvicorn_config(app: ASGIApp, serve: ServeConfig) -> uvicorn.Config:
    """The configuration of uvicorn. Raises BadSetting if the certificate cannot be used."""
    if (serve.tls_cert is None) != (serve.tls_key is None):
        raise BadSetting("tls_cert and tls_key go together: give both or neither.", field="tls_cert")
    config = uvicorn.Config(
        app,
        http=connection_for(serve),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=serve.drain_seconds,  # type: ignore[arg-type]  # a float works too
        ssl_certfile=serve.tls_cert,
        ssl_keyfile=serve.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise BadSetting(f"The TLS certificate or its key cannot be used: {error}", field="tls_cert") from None
    return config
