"""A gateway's life: it listens at once, drains at the first SIGTERM, and reloads its files at SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time

from quire.gateway.server.app import make_gateway_app
from quire.gateway.server.service import GatewayService
from quire.serve.processes.server import QuietServer, listen, run_until_signal, server_url, uvicorn_config

logger = logging.getLogger(__name__)

FREEZE_SECONDS = 2.0


class GatewayServing:
    """A gateway in this process. It listens as soon as it is made, and answers while `run` runs."""

    def __init__(self, service: GatewayService, listener: socket.socket | None = None) -> None:
        self.service = service
        self._server = QuietServer(uvicorn_config(make_gateway_app(service), service.config.serve))
        self._socket = listen(service.config.serve) if listener is None else listener
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return server_url(self._socket, self._server.config)

    def run_until_signal(self) -> None:
        """Serve, in the main thread, until a signal."""
        run_until_signal(self, self._server.config, self.reload)

    async def run(self) -> None:
        """Serve until `stop`."""
        self._loop = asyncio.get_running_loop()
        self.service.start()
        self._loop.call_later(FREEZE_SECONDS, _freeze)
        try:
            await self._server.serve([self._socket])
        finally:
            await self.service.close()

    def stop(self, why: str = "stop was called") -> None:
        """End: the first call drains, the second ends at once. From any thread."""
        if self._server.should_exit:
            self._server.force_exit = True
        else:
            seconds = self.service.config.serve.drain_seconds
            num_running, at = self.service.num_running, time.strftime("%H:%M:%S")
            logger.info("shutting down (%s) at %s: %d requests have %g s to finish", why, at, num_running, seconds)
        self.service.is_draining = self._server.should_exit = True

    def reload(self) -> None:
        """Read the fleet file and the routes again. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.service.reload)


def _freeze() -> None:
    gc.collect()
    gc.freeze()  # these objects stay: no stream should wait while the collector scans them again
