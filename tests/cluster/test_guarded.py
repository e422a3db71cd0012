"""A server under its guard: it outlives its owner, is adopted by the next one, and ends if there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from quire.cluster.guard import is_locked
from quire.cluster.guarded import GuardedServer, ServerCommand, find_port
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

COMMAND = ServerCommand(("gateway", "--port", "{port}"), drain_seconds=2, orphan_seconds=60)


class Owner:
    """One after the other owns the server `s` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[GuardedServer] = []

    def next(self, command: ServerCommand = COMMAND) -> GuardedServer:
        """A new owner; the one before it is dead."""
        for each in self.servers:
            lose(each)
        server = GuardedServer(self.folder, "s", command)
        assert server.own()
        server.ensure()
        self.servers.append(server)
        return server


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path / "run")
    yield made
    for each in made.servers:
        each.kill()
    assert all(each.wait(20) for each in made.servers)


def lose(server: GuardedServer) -> None:
    """What the kernel does when an owner is killed."""
    if server._owner is not None:
        os.close(server._owner)
        server._owner = None


def wait_ready(server: GuardedServer) -> None:
    def is_ready() -> bool:
        try:
            return httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(is_ready)


def test_a_server_outlives_its_owner_and_is_adopted(owner):
    first = owner.next()
    wait_ready(first)
    before = first.pids
    assert GuardedServer(owner.folder, "s", COMMAND).pids == before and is_locked(owner.folder / "s.owner")
    second = owner.next()
    assert second.is_adopted and second.pids == before and second.url == first.url
    assert (owner.folder / "s.json").stat().st_mode & 0o077 == 0
    os.kill(before["server"], signal.SIGKILL)
    assert second.wait(20) and second.exit_code == -signal.SIGKILL
    second.ensure()
    assert not second.is_adopted and second.url == first.url and second.pids != before
    wait_ready(second)
    guard, server = second.pids["guard"], second.pids["server"]
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not has_process(server))
    assert second.wait(20)


def test_a_server_of_another_command_is_drained_and_replaced(owner):
    first = owner.next()
    wait_ready(first)
    port = find_port("127.0.0.1")
    second = owner.next(replace(COMMAND, port=port, orphan_seconds=0.5))
    assert not second.is_adopted and second.url == f"http://127.0.0.1:{port}"
    wait_ready(second)
    lose(second)  # it is not adopted
    assert second.wait(30) and second.exit_code == 0


def test_a_server_that_cannot_start_says_why(owner):
    server = owner.next(replace(COMMAND, arguments=("gateway", "--port", "{port}", "--balance", "dice")))
    assert server.wait(20) and server.exit_code == 1 and "no balancer 'dice'" in server.last_line()


def has_process(pid: int) -> bool:
    """Is it there, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
