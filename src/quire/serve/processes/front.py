"""A front: one of several processes that speak HTTP for the same engines, which the hub has (fronts.py).

Law: a front has nothing that another front does not know. Engines, quotas and the listening socket are the hub's;
metrics it writes down every second. It ends when the hub does.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import struct
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from quire.config import Config
from quire.engine.client import Client, Deliver
from quire.engine.hub import HubLink
from quire.engine.launch import Progress
from quire.engine.need import Budget, budget_bytes
from quire.engine.readers import LoopReader
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.request_log import open_request_log
from quire.observe.trace import open_traces
from quire.serve.access.keys import Key, Keys
from quire.serve.access.quota import Quotas
from quire.serve.http.app import all_dialects
from quire.serve.processes.server import Serving
from quire.serve.processes.shared import SharedMeters, SharedTable
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import Wanted
from quire.serve.service import Service

LENGTH = struct.Struct("!Q")
REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """A model, and where the hub speaks of it."""

    name: str
    aliases: tuple[str, ...]
    address: str


@dataclass(frozen=True, slots=True)
class Orders:
    """What the hub tells a new front, over its standard input."""

    name: str  # of this front, which no other has or had; and of a file that says that it is ready
    place: int  # among the fronts; whoever takes the place of one that died has the same
    folder: str
    config: Config
    keys: tuple[Key, ...]
    models: tuple[Served, ...]

    def write(self, pipe: IO[bytes]) -> None:
        """To a front."""
        data = msgspec.msgpack.encode(self)
        pipe.write(LENGTH.pack(len(data)) + data)
        pipe.flush()

    @classmethod
    def read(cls, pipe: IO[bytes]) -> Orders | None:
        """As a front. None: the hub has gone."""
        head = pipe.read(LENGTH.size)
        data = pipe.read(*LENGTH.unpack(head)) if len(head) == LENGTH.size else b""
        return msgspec.msgpack.decode(data, type=cls) if data else None


@dataclass(slots=True)
class AtHub:
    """Engines that the hub has."""

    orders: Orders
    _links: list[HubLink] = field(default_factory=list)

    def budget(self, config: Config) -> Budget:
        """Of engines that are the hub's to start and to end, none is counted."""
        return Budget(budget_bytes(config))

    def measure(self, path: Path, config: Config) -> None:
        """The hub has done that."""

    def open(
        self, name: str, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop
    ) -> tuple[Path, Client]:
        """Wait until the hub has an engine. It knows where the model lies."""
        (address,) = (each.address for each in self.orders.models if each.name == name)

        def opens(deliver: Deliver) -> HubLink:
            self._links.append(HubLink(address, self.orders.name, deliver, partial(LoopReader, loop=loop)))
            return self._links[-1]

        client = Client(opens)
        return Path(self._links[-1].configure.model), client

    def lost(self) -> None:
        """There is no hub any more, and so no engine."""
        for link in self._links:
            link.on_hub_death()


class Front(Serving):
    """A server that follows a hub."""

    def __init__(self, service: Service, listener: socket.socket, meters: SharedMeters, place: AtHub) -> None:
        sign = Path(place.orders.folder) / place.orders.name
        super().__init__(service, lambda url: sign.touch(), listener)  # the hub looks for it
        self._meters = meters
        self._place = place
        self._is_lost = False

    async def run(self) -> None:
        """Serve until told to stop, or until the hub has gone."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._end)
        reporting = asyncio.create_task(self._report())
        try:
            await super().run()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            reporting.cancel()
            if self._is_lost:
                shutil.rmtree(self._place.orders.folder, ignore_errors=True)
            else:
                self._meters.write(self._service.meters.samples())

    async def _log_throughput(self) -> None:
        """All fronts have the same engines: one of them writes the lines."""
        if self._place.orders.place == 0:
            await super()._log_throughput()

    def _end(self) -> None:
        """The hub's end of our standard input is closed."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._is_lost = True
        self._place.lost()
        self.stop("the hub has gone")

    async def _report(self) -> None:
        while True:
            self._meters.write(self._service.meters.samples())
            await asyncio.sleep(REPORT_SECONDS)


def main(descriptor: int) -> None:
    """The child's main. `descriptor` is the listening socket."""
    orders = Orders.read(sys.stdin.buffer)
    if orders is None:
        return
    config = orders.config
    start_logging(config.observe, is_whole_process=True)
    place = AtHub(orders)
    wanted = [Wanted(each.name, Path, each.aliases) for each in orders.models]  # the hub knows where it lies
    folder = Path(orders.folder)
    meters = SharedMeters(folder, orders.place)
    with open_traces(config.serve.otlp_endpoint) as traces, open_request_log(config.serve.request_log) as logs:
        service = Service(
            config,
            Models(wanted, config, place, lambda loading: None),
            all_dialects(),
            Keys(orders.keys),
            quotas=Quotas(SharedTable(folder / "quotas", orders.keys, config.serve.fronts), orders.place),
            observers=(partial(log_access, logging.getLogger("quire.access")), *traces, *logs),
            others=meters.others,
        )
        Front(service, socket.socket(fileno=descriptor), meters, place).run_until_signal()
