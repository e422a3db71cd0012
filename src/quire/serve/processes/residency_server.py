"""The hub's side of residency: answers the questions of all fronts, and gives up the leases of a front that dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from quire.engine.client import Client
from quire.engine.hub import Hub
from quire.serve.processes.channel import (
    SOCKET,
    Acquire,
    Acquired,
    CallFailed,
    Channel,
    ChannelMessage,
    Done,
    EngineCounters,
    FrontHello,
    FrontReady,
    HubAnswer,
    MemoryAnswer,
    Query,
    Records,
    Release,
    StatusChanged,
)
from quire.serve.residency.contract import ModelLease
from quire.serve.residency.local import LocalResidency
from quire.types.errors import QuireError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05  # between two looks at the status of models


class ResidencyServer:
    """Serves one `LocalResidency` to the fronts. Used in the event loop's thread."""

    def __init__(self, residency: LocalResidency, folder: Path) -> None:
        self.ready_fronts: set[str] = set()
        self._residency = residency
        self._folder = folder
        self._hubs: dict[Client, Hub] = {}
        self._num_hubs = 0
        self._fronts: dict[_FrontConnection, asyncio.Task[None]] = {}
        self._sent = self._status()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Accept fronts."""
        self._server = await asyncio.start_unix_server(self._serve, str(self._folder / SOCKET))

    async def watch(self) -> None:
        """Send changes of the status to all fronts, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for client in self._hubs.keys() - set(self._residency.clients()):
                self._hubs.pop(client).close()
            if (status := self._status()) != self._sent:
                self._sent = status
                for front in self._fronts:
                    front.channel.send(status)

    async def close(self) -> None:
        """Hang up. The engines are the residency's to end."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._fronts.values())
        for front in self._fronts:
            front.channel.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for hub in self._hubs.values():
            hub.close()

    def address_of(self, client: Client) -> str:
        """Where fronts reach the engine of this client."""
        if client not in self._hubs:
            self._num_hubs += 1
            address = f"ipc://{self._folder}/engine-{self._num_hubs}"
            self._hubs[client] = Hub(address, client, asyncio.get_running_loop())
        return self._hubs[client].address

    def _status(self) -> StatusChanged:
        return StatusChanged(self._residency.status, tuple(hub.address for hub in self._hubs.values()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        hello = await channel.receive()
        if not isinstance(hello, FrontHello):
            channel.close()
            return
        front = _FrontConnection(hello.front, channel, self._residency, self.address_of)
        task = asyncio.current_task()
        assert task is not None
        self._fronts[front] = task
        channel.send(self._status())
        try:
            while (message := await channel.receive()) is not None:
                if isinstance(message, FrontReady):
                    self.ready_fronts.add(front.name)
                else:
                    front.handle(message)
        finally:
            del self._fronts[front]
            front.close()
            for hub in self._hubs.values():
                hub.remove_front(front.name)


class _FrontConnection:
    """One front: its leases, and its questions that are not answered yet."""

    def __init__(
        self, name: str, channel: Channel, residency: LocalResidency, address_of: Callable[[Client], str]
    ) -> None:
        self.name = name
        self.channel = channel
        self._residency = residency
        self._address_of = address_of
        self._leases: dict[int, ModelLease] = {}  # by call
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the same

    def handle(self, message: ChannelMessage) -> None:
        """Begin to answer a message."""
        match message:
            case Acquire(call, name):
                self._start(call, self._acquire(call, name))
            case Release(call, keep_alive):
                self._release(call, keep_alive)
            case Query():
                self._start(message.call, self._answer(message))

    def close(self) -> None:
        """The front is gone: give up its leases."""
        for task in tuple(self._tasks.values()):
            task.cancel()
        for call in tuple(self._leases):
            self._release(call, None)
        self.channel.close()

    def _start(self, call: int, work: Coroutine[Any, Any, HubAnswer]) -> None:
        async def run() -> None:
            try:
                self.channel.send(await work)
            except QuireError as error:
                self.channel.send(CallFailed(call, error))
            except Exception as error:
                logger.exception("a question of %s about models failed", self.name)
                self.channel.send(CallFailed(call, QuireError(f"{type(error).__name__}: {error}")))

        task = self._tasks[call] = asyncio.create_task(run())
        task.add_done_callback(lambda task: self._tasks.pop(call, None))

    async def _acquire(self, call: int, name: str) -> Acquired:
        lease = await self._residency.acquire(name)
        self._leases[call] = lease
        address = self._address_of(lease.client)
        return Acquired(call, lease.name, lease.identity, lease.facts, str(lease.path), address)

    def _release(self, call: int, keep_alive: float | None) -> None:
        lease = self._leases.pop(call, None)
        if lease is not None:
            self._residency.release(lease, keep_alive)
        elif (task := self._tasks.get(call)) is not None:
            task.cancel()  # it still waits

    async def _answer(self, query: Query) -> HubAnswer:
        residency, call = self._residency, query.call
        match query.about:
            case "records":
                return Records(call, await residency.records())
            case "record":
                return Records(call, [await residency.record(query.name)])
            case "unload":
                return Records(call, [await residency.unload(query.name)])
            case "memory":
                return MemoryAnswer(call, await residency.memory())
            case "counters":
                return EngineCounters(call, await residency.counters())
            case "forget":
                await residency.forget(query.name)
                return Done(call)
