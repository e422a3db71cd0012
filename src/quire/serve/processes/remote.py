"""A front's side of residency: it passes questions on to the hub, and connects to the engines that it leases."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from quire.engine.client import Client, Deliver
from quire.engine.hub import HubLink
from quire.engine.messages import Counters, EngineDied
from quire.engine.readers import LoopReader
from quire.serve.http.exchange import ClientGone
from quire.serve.processes.channel import (
    SOCKET,
    Acquire,
    Acquired,
    CallFailed,
    Channel,
    EngineCounters,
    FrontHello,
    FrontReady,
    HubAnswer,
    HubMessage,
    MemoryAnswer,
    Query,
    Records,
    Release,
    StatusChanged,
)
from quire.serve.residency.contract import Gone, MemoryReport, ModelLease, ModelRecord, ResidencyStatus
from quire.serve.residency.engines import in_thread


class RemoteResidency:
    """See `contract.Residency`."""

    def __init__(self, folder: Path, front: str, status: ResidencyStatus) -> None:
        self.status = status
        self._path = folder / SOCKET
        self._front = front
        self._calls = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._channel: Channel | None = None
        self._is_connected = asyncio.Event()
        self._is_started = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._engines: dict[str, _HubEngine] = {}  # by address

    def knows(self, name: str) -> None:
        """Only the hub can tell: it checks the routes before a front reads them."""

    # ── requests ──

    async def acquire(self, name: str, gone: Gone | None = None) -> ModelLease:
        """Wait until the hub has loaded the model, and this front is connected to its engine."""
        channel, call, answer = await self._begin_call()
        try:
            channel.send(Acquire(call, name))
            await asyncio.wait({answer} if gone is None else {answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGone
            found: Acquired = answer.result()
            client = await self._engine(found.address).client()
        except BaseException:
            channel.send(Release(call))
            raise
        finally:
            del self._answers[call]
        return ModelLease(call, found.name, found.identity, found.facts, Path(found.path), client)

    def release(self, lease: ModelLease, keep_alive: float | None = None) -> None:
        """The request has ended."""
        if self._channel is not None:
            self._channel.send(Release(lease.ticket, keep_alive))

    async def unload(self, name: str) -> ModelRecord:
        """Unload a model."""
        return (await self._ask_records("unload", name))[0]

    async def forget(self, name: str) -> None:
        """Stop serving a model."""
        await self._ask("forget", name)

    # ── reports ──

    async def records(self) -> list[ModelRecord]:
        """All models."""
        return await self._ask_records("records")

    async def record(self, name: str) -> ModelRecord:
        """The model with this name, measured."""
        return (await self._ask_records("record", name))[0]

    async def memory(self) -> MemoryReport:
        """The memory budget and its use by each engine."""
        answer = await self._ask("memory")
        assert isinstance(answer, MemoryAnswer)
        return answer.report

    async def counters(self) -> dict[str, Counters]:
        """The counters of every engine that answers."""
        answer = await self._ask("counters")
        assert isinstance(answer, EngineCounters)
        return answer.counters

    # ── life ──

    async def load(self) -> None:
        """Connect to the hub, and wait until it has loaded the models of the command line."""
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        self._channel = Channel(reader, writer)
        self._channel.send(FrontHello(self._front))
        self._reading = asyncio.create_task(self._read(self._channel))
        self._is_connected.set()
        await self._is_started.wait()

    def say_ready(self) -> None:
        """Tell the hub that this front can answer requests."""
        assert self._channel is not None
        self._channel.send(FrontReady())

    async def watch(self) -> None:
        """The hub does that."""

    async def close(self) -> None:
        """Disconnect. The engines are the hub's to end."""
        if self._reading is not None:
            self._reading.cancel()
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.close() for engine in engines))
        if self._channel is not None:
            self._channel.close()

    def lost(self) -> None:
        """The hub is gone, and the engines with it: fail everything that waits."""
        for engine in self._engines.values():
            engine.lost()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineDied("The process that has the engines has died."))

    # ── the channel ──

    async def _begin_call(self) -> tuple[Channel, int, asyncio.Future[Any]]:
        await self._is_connected.wait()
        assert self._channel is not None
        call, answer = next(self._calls), asyncio.get_running_loop().create_future()
        self._answers[call] = answer
        return self._channel, call, answer

    async def _ask(
        self, about: Literal["records", "record", "unload", "forget", "memory", "counters"], name: str = ""
    ) -> HubAnswer:
        channel, call, answer = await self._begin_call()
        try:
            channel.send(Query(call, about, name))
            found: HubAnswer = await answer
        finally:
            del self._answers[call]
        return found

    async def _ask_records(self, about: Literal["records", "record", "unload"], name: str = "") -> list[ModelRecord]:
        answer = await self._ask(about, name)
        assert isinstance(answer, Records)
        return answer.records

    async def _read(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            self._handle(message)  # type: ignore[arg-type]  # a hub says nothing else

    def _handle(self, message: HubMessage) -> None:
        if isinstance(message, StatusChanged):
            self.status = message.status
            if message.status.is_started:
                self._is_started.set()
            self._drop_engines(message.addresses)
            return
        answer = self._answers.get(message.call)
        if answer is None or answer.done():
            return  # its caller has given up
        if isinstance(message, CallFailed):
            answer.set_exception(message.error)
        else:
            answer.set_result(message)

    def _engine(self, address: str) -> _HubEngine:
        engine = self._engines.get(address)
        if engine is None:
            engine = self._engines[address] = _HubEngine(address, self._front)
        return engine

    def _drop_engines(self, addresses: Sequence[str]) -> None:
        """Disconnect from engines that were unloaded."""
        for address in self._engines.keys() - set(addresses):
            self._engines.pop(address).drop()


class _HubEngine:
    """A front's connection to one engine of the hub, made when it is first needed."""

    def __init__(self, address: str, front: str) -> None:
        self._address = address
        self._front = front
        self._link: HubLink | None = None
        self._opening: asyncio.Task[Client] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def client(self) -> Client:
        """The client, shared by all requests of this front."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            work = partial(self._open, asyncio.get_running_loop())
            self._opening = asyncio.create_task(in_thread(work, lambda client: client.close()))
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Disconnect."""
        if self._opening is not None and self._opening.done() and self._opening.exception() is None:
            await asyncio.to_thread(self._opening.result().close)
        elif self._opening is not None:
            self._opening.cancel()

    def drop(self) -> None:
        """Disconnect, beside everything else."""
        self._closing = asyncio.create_task(self.close())

    def lost(self) -> None:
        """The hub is gone."""
        if self._link is not None:
            self._link.on_hub_death()

    def _open(self, loop: asyncio.AbstractEventLoop) -> Client:
        """In a thread."""

        def open_link(deliver: Deliver) -> HubLink:
            self._link = HubLink(self._address, self._front, deliver, partial(LoopReader, loop=loop))
            return self._link

        return Client(open_link)
