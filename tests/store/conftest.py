"""Fixtures: a server with configurable faults, a small disk, and a real registry."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.docker_registry import RunningRegistry, running_registry
from tests.store.server import Behaviour, serving

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def no_proxy(monkeypatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)  # the servers are on this machine


@pytest.fixture
def server(monkeypatch, no_proxy) -> Iterator[Behaviour]:
    monkeypatch.setattr("quire.store.downloads.http.RETRY_SECONDS", 0.01)
    with serving() as behaviour:
        yield behaviour


@pytest.fixture
def small_pieces(monkeypatch) -> int:
    """Files of 256 KB and more come in pieces of 64 KB."""
    monkeypatch.setattr("quire.store.downloads.ranges.PIECE", 1 << 16)
    monkeypatch.setattr("quire.store.downloads.ranges.PARALLEL_FROM", 1 << 18)
    return 1 << 16


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 256 KB. Only root can make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this machine does not let us mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def docker_registry(tmp_path_factory) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running
