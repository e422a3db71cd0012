"""A front: one of several processes that serve HTTP for the same engines, which the hub owns (hub.py).

A front has no state that other fronts lack: engines, quotas and the listening socket are the hub's, and it writes its
metrics to a shared folder every second. It ends when the hub does.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import struct
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from quire.config import Config
from quire.engine.supported import check_supported
from quire.engine.wire import error_of, plain_error
from quire.gateway.library import StoreLibrary
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.request_log import open_request_log
from quire.observe.trace import open_traces
from quire.serve.access.keys import ApiKey, ApiKeys
from quire.serve.access.quota import Quotas
from quire.serve.http.app import all_dialects
from quire.serve.processes.remote import RemoteResidency
from quire.serve.processes.server import Serving
from quire.serve.processes.shared import SharedMeters, SharedQuotaTable
from quire.serve.residency.contract import ResidencyStatus
from quire.serve.residency.models import Models
from quire.serve.service import Service
from quire.store.store import open_store

LENGTH = struct.Struct("!Q")
REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FrontOrders:
    """What the hub sends to a new front over its standard input."""

    name: str  # unique for the life of the hub
    place: int  # among the fronts; a front that replaces a dead one has its place
    folder: str
    config: Config
    keys: tuple[ApiKey, ...]
    status: ResidencyStatus
    has_library: bool  # may models of the store be changed?

    def write(self, pipe: IO[bytes]) -> None:
        """Send them to a front."""
        data = msgspec.msgpack.encode(self, enc_hook=plain_error)
        pipe.write(LENGTH.pack(len(data)) + data)
        pipe.flush()

    @classmethod
    def read(cls, pipe: IO[bytes]) -> FrontOrders | None:
        """Receive them, as a front. None: the hub is gone."""
        head = pipe.read(LENGTH.size)
        data = pipe.read(*LENGTH.unpack(head)) if len(head) == LENGTH.size else b""
        return msgspec.msgpack.decode(data, type=cls, dec_hook=error_of) if data else None


class Front(Serving):
    """A server that follows a hub."""

    def __init__(
        self, service: Service, listener: socket.socket, orders: FrontOrders, residency: RemoteResidency
    ) -> None:
        super().__init__(service, lambda url: residency.say_ready(), listener)
        self._orders = orders
        self._residency = residency
        self._meters = SharedMeters(Path(orders.folder), orders.place)
        self._is_orphan = False
        service.others = self._meters.others

    async def run(self) -> None:
        """Serve until the hub sends a stop, or dies."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._on_hub_gone)
        reporting = asyncio.create_task(self._report())
        try:
            await super().run()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            reporting.cancel()
            if self._is_orphan:
                shutil.rmtree(self._orders.folder, ignore_errors=True)
            else:
                self._meters.write(self._service.meters.samples())

    async def _log_throughput(self) -> None:
        """The hub does that, once for all fronts."""

    def _on_hub_gone(self) -> None:
        """The hub's end of our standard input is closed."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._is_orphan = True
        self._residency.lost()
        self.stop("the hub is gone")

    async def _report(self) -> None:
        while True:
            self._meters.write(self._service.meters.samples())
            await asyncio.sleep(REPORT_SECONDS)


def main(descriptor: int) -> None:
    """The child's main function. `descriptor` is the listening socket."""
    orders = FrontOrders.read(sys.stdin.buffer)
    if orders is None:
        return
    config, folder = orders.config, Path(orders.folder)
    start_logging(config.observe, is_whole_process=True)
    residency = RemoteResidency(folder, orders.name, orders.status)
    with open_traces(config.serve.otlp_endpoint) as traces, open_request_log(config.serve.request_log) as logs:
        service = Service(
            config,
            Models(residency, config),
            all_dialects(),
            ApiKeys(orders.keys),
            quotas=Quotas(SharedQuotaTable(folder / "quotas", orders.keys, config.serve.fronts), orders.place),
            observers=(partial(log_access, logging.getLogger("quire.access")), *traces, *logs),
            library=StoreLibrary(open_store(config), check_supported) if orders.has_library else None,
        )
        Front(service, socket.socket(fileno=descriptor), orders, residency).run_until_signal()
