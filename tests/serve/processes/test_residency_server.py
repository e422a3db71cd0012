"""Residency between a hub and its fronts: leases are released, withdrawn or given up, and errors cross whole."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from quire.engine.messages import Counters, Ready
from quire.serve.errors import ModelNotServed, NoRoom
from quire.serve.http.exchange import ClientGone
from quire.serve.processes.remote import RemoteResidency
from quire.serve.processes.residency_server import ResidencyServer
from quire.serve.residency.contract import Gone, MemoryReport, ModelLease, ModelRecord, ModelStatus, ResidencyStatus
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.shelf import StoreFacts
from quire.types.errors import QuireError

pytestmark = pytest.mark.pure

READY = Ready("cpu", "llama", 100, 512, 10, 16, 0.1)
FACTS = StoreFacts(1.5, 10, "abc", "gguf", "Q4_1", 135, "MIT")


class FakeClient:
    """An engine's client that takes no requests."""

    ready = READY
    trouble: str | None = None


class FakeResidency:
    """Loads `slow` when it is told to, refuses `missing` and `large`, and has every other model."""

    def __init__(self) -> None:
        self.status = ResidencyStatus((ModelStatus("toy", is_named=True),))
        self.client = FakeClient()
        self.may_load = asyncio.Event()
        self.waiting: set[str] = set()
        self.released: list[tuple[int, float | None]] = []
        self.num_leases = 0

    async def acquire(self, name: str, gone: Gone | None = None) -> ModelLease:
        if name == "missing":
            raise ModelNotServed("missing", ["toy"])
        if name == "large":
            raise NoRoom("large", 3.0, 2.0)
        if name == "slow":
            self.waiting.add(name)
            try:
                await self.may_load.wait()
            finally:
                self.waiting.remove(name)
        self.num_leases += 1
        return ModelLease(self.num_leases, name, "id", FACTS, Path("/models") / name, cast(Any, self.client))

    def release(self, lease: ModelLease, keep_alive: float | None = None) -> None:
        self.released.append((lease.ticket, keep_alive))

    def clients(self) -> list[FakeClient]:
        return [self.client]

    async def records(self) -> list[ModelRecord]:
        return [ModelRecord("toy", "id", facts=FACTS), ModelRecord("other", "")]

    async def forget(self, name: str) -> None:
        if name != "toy":
            raise ModelNotServed(name, ["toy"])

    async def memory(self) -> MemoryReport:
        return MemoryReport("bytes", 100, {"toy": 60}, 2, 1)

    async def counters(self) -> dict[str, Counters]:
        return {"toy": Counters(num_steps=7)}


@asynccontextmanager
async def hub_and_front() -> AsyncIterator[tuple[FakeResidency, RemoteResidency, ResidencyServer]]:
    folder = Path(tempfile.mkdtemp(prefix="q", dir="/tmp"))  # short enough for a socket
    fake = FakeResidency()
    server = ResidencyServer(cast(LocalResidency, fake), folder)
    await server.start()
    watching = asyncio.create_task(server.watch())
    front = RemoteResidency(folder, "front-0", ResidencyStatus())
    loading = asyncio.create_task(front.load())
    try:
        yield fake, front, server
    finally:
        loading.cancel()
        watching.cancel()
        await front.close()
        await server.close()
        shutil.rmtree(folder)


def run(test: Callable[[FakeResidency, RemoteResidency, ResidencyServer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with hub_and_front() as parts, asyncio.timeout(60):
            await test(*parts)

    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


def test_a_lease_has_the_engine_and_is_released_with_its_keep_alive() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        first, second = await front.acquire("toy"), await front.acquire("toy")
        assert (first.name, first.identity, first.facts, first.path) == ("toy", "id", FACTS, Path("/models/toy"))
        assert first.client.ready == READY and second.client is first.client
        front.release(second, 12.0)
        front.release(first)
        await until(lambda: fake.released == [(2, 12.0), (1, None)])

    run(test)


def test_errors_keep_their_class_and_facts() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        with pytest.raises(ModelNotServed, match="'missing' is not served here: choose toy"):
            await front.acquire("missing")
        with pytest.raises(NoRoom) as caught:
            await front.acquire("large")
        assert caught.value.retry_after == 2.0
        with pytest.raises(ModelNotServed):
            await front.forget("nobody")
        await front.forget("toy")

    run(test)


def test_reports_cross() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        assert await front.records() == await fake.records()
        assert await front.memory() == await fake.memory() and await front.counters() == await fake.counters()

    run(test)


def test_a_client_that_leaves_or_a_cancelled_request_withdraws_its_acquire() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        gone = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(front.acquire("slow", gone))
        await until(lambda: bool(fake.waiting))
        gone.set_result(None)
        with pytest.raises(ClientGone):
            await waiting
        await until(lambda: not fake.waiting)
        waiting = asyncio.create_task(front.acquire("slow"))
        await until(lambda: bool(fake.waiting))
        waiting.cancel()
        await until(lambda: not fake.waiting)
        assert not fake.num_leases

    run(test)


def test_the_leases_of_a_front_that_dies_are_released() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        await front.acquire("toy")
        waiting = asyncio.create_task(front.acquire("slow"))
        await until(lambda: bool(fake.waiting))
        assert front._channel is not None
        front._channel.close()  # as the system does for a process that dies
        await until(lambda: fake.released == [(1, None)] and not fake.waiting)
        waiting.cancel()

    run(test)


def test_a_front_follows_the_status_and_drops_unloaded_engines() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        assert front.knows("toy") is None
        await until(lambda: front.status == fake.status)
        lease = await front.acquire("toy")
        front.release(lease)
        error = QuireError("It is broken.")
        fake.status = ResidencyStatus((ModelStatus("toy", True, True, "does not respond"),), True, error)
        await until(lambda: front.status.is_started)
        assert front.status.models == fake.status.models and front.status.error is not None
        assert front.status.error.public == "It is broken."
        fake.client = FakeClient()
        await until(lambda: not front._engines)
        await until(lambda: not lease.client.is_alive)
        assert (await front.acquire("toy")).client is not lease.client

    run(test)


def test_the_hub_knows_which_fronts_are_ready() -> None:
    async def test(fake: FakeResidency, front: RemoteResidency, server: ResidencyServer) -> None:
        await front.memory()
        assert not server.ready_fronts
        front.say_ready()
        await until(lambda: server.ready_fronts == {"front-0"})

    run(test)
