"""Residency in one process, with engines that are only counted: measuring, sharing, failing and unloading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from quire.config import Config, load
from quire.engine.client import Client
from quire.engine.launch import Progress
from quire.engine.messages import Ready
from quire.engine.need import Budget, Need
from quire.runner.cache_plan import CacheBytes
from quire.serve.errors import ModelLoading, ModelNotServed
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.shelf import ModelEntry
from quire.types.errors import QuireError

pytestmark = pytest.mark.pure

NEED = Need(fixed_bytes=100, cache=CacheBytes(1), config=Config(), max_context=160)


class FakeClient:
    """The client of an engine that takes no requests."""

    ready = Ready("cpu", "llama", 100, 160, 10, 16, 0.1)
    trouble: str | None = None
    is_alive = True
    num_restarts = 0
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Shelf:
    """Models of the store: here one."""

    def __init__(self, entry: ModelEntry) -> None:
        self.entry = entry

    def find(self, text: str) -> ModelEntry | None:
        return self.entry if text == self.entry.name else None

    def all(self) -> list[ModelEntry]:
        return [self.entry]


class FakeLauncher(EngineLauncher):
    """Counts. Engines are opened at once, or fail as often as they are told to."""

    num_measured = num_opened = num_failures = 0

    def budget(self, config: Config) -> Budget:
        return Budget(1000)

    def measure(self, path: Path, config: Config) -> Need:
        type(self).num_measured += 1
        return NEED

    def open(self, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop) -> Client:
        if type(self).num_failures:
            type(self).num_failures -= 1
            raise QuireError("It is broken.")
        type(self).num_opened += 1
        return cast(Client, FakeClient())


def run(
    tmp_path: Path,
    names: tuple[str, ...],
    test: Callable[[LocalResidency, type[FakeLauncher]], Awaitable[None]],
    **settings: Any,
) -> None:
    """All names are of one file."""
    file = tmp_path / "toy.gguf"
    file.write_bytes(b"GGUF")

    class Launcher(FakeLauncher):
        pass

    async def main() -> None:
        entries = [ModelEntry(name, lambda: file) for name in names]
        residency = LocalResidency(entries, load(settings, {}), Launcher(), lambda loading: None)
        async with asyncio.timeout(60):
            await test(residency, Launcher)
            await residency.close()

    asyncio.run(main())


def test_names_of_one_file_are_measured_once_and_share_an_engine(tmp_path: Path) -> None:
    async def test(residency: LocalResidency, launcher: type[FakeLauncher]) -> None:
        await residency.load()
        assert (launcher.num_measured, launcher.num_opened) == (1, 1)
        assert list((await residency.memory()).reserved) == ["a, b"]
        first, second = await residency.records()
        assert first.engine is not None and second.engine is not None
        assert (first.engine.shared_with, second.engine.shared_with) == ("", "a")
        assert residency.status.is_started and all(model.is_ready for model in residency.status.models)

    run(tmp_path, ("a", "b"), test)


def test_a_failed_load_fails_every_request_that_waited_and_the_next_one_tries_again(tmp_path: Path) -> None:
    async def test(residency: LocalResidency, launcher: type[FakeLauncher]) -> None:
        launcher.num_failures = 1
        failed = await asyncio.gather(*(residency.acquire("a") for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in failed] == ["It is broken."] * 3
        residency.release(await residency.acquire("a"))
        assert launcher.num_opened == 1

    run(tmp_path, ("a",), test)


def test_an_engine_is_unloaded_after_the_last_lease(tmp_path: Path) -> None:
    async def test(residency: LocalResidency, launcher: type[FakeLauncher]) -> None:
        lease = await residency.acquire("a")
        client = cast(FakeClient, lease.client)
        assert (await residency.unload("a")).engine is not None and not client.is_closed
        residency.release(lease)
        assert (await residency.unload("a")).engine is None and client.is_closed
        again = await residency.acquire("a")
        assert again.client is not lease.client and launcher.num_measured == 1

    run(tmp_path, ("a",), test)


def test_requests_are_refused_for_unknown_names_and_after_the_load_patience(tmp_path: Path) -> None:
    async def test(residency: LocalResidency, launcher: type[FakeLauncher]) -> None:
        assert residency.knows("a") and not residency.knows("b")
        with pytest.raises(ModelNotServed, match="choose a"):
            await residency.acquire("b")
        opening = asyncio.get_running_loop().create_future()

        async def never(*_: Any) -> None:
            await opening

        residency._load = never  # type: ignore[assignment, method-assign]
        with pytest.raises(ModelLoading):
            await residency.acquire("a")
        opening.set_result(None)

    run(tmp_path, ("a",), test, load_patience=0.01)


@pytest.mark.parametrize("are_equal", [False, True])
def test_the_draft_model_is_for_the_models_of_the_command_line(tmp_path: Path, are_equal: bool) -> None:
    """Not for those of the store, not even for one with the weights of a model of the command line."""
    named, stored = tmp_path / "named.gguf", tmp_path / "stored.gguf"
    named.write_bytes(b"GGUF")
    if are_equal:
        stored.hardlink_to(named)
    else:
        stored.write_bytes(b"GGUF of another")
    measured, opened = asyncio.run(drafts_by_model(named, stored, load({"draft": "/draft.gguf"}, {})))
    assert measured == opened == {"named": "/draft.gguf", "stored": None}


async def drafts_by_model(named: Path, stored: Path, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load a model of the command line and a stored one. Return the draft models they are measured and opened with."""
    measured: dict[str, Any] = {}
    opened: dict[str, Any] = {}

    class Launcher(FakeLauncher):
        def measure(self, path: Path, config: Config) -> Need:
            measured[path.stem] = config.speculation.draft
            return NEED

        def open(self, path: Path, config: Config, progress: Progress, loop: asyncio.AbstractEventLoop) -> Client:
            opened[path.stem] = config.speculation.draft
            return cast(Client, FakeClient())

    shelf = Shelf(ModelEntry("stored", lambda: stored))
    residency = LocalResidency([ModelEntry("named", lambda: named)], config, Launcher(), lambda loading: None, shelf)
    async with asyncio.timeout(60):
        await residency.load()
        residency.release(await residency.acquire("stored"))
        await residency.close()
    return measured, opened
