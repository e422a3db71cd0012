"""Servers that are start_server by a command: their port, their start and their failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quire.bench.engines.fixed_delay_server import fixed_delay_server
from quire.bench.engines.http_client import HttpTarget
from quire.bench.engines.server_process import StartFailed, command_and_url, start_server
from quire.bench.load.event_loop import run_async
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.e2e


def test_a_command_that_ends_is_reported_with_its_last_lines(tmp_path):
    line = f"{sys.executable} -c 'print(\"no such model\")' --port {{port}}"
    with pytest.raises(StartFailed, match="no such model"):
        run_async(_start(line, tmp_path))
    with pytest.raises(StartFailed, match="cannot be started"):
        run_async(_start("/no/such/program --port {port}", tmp_path))


def test_a_port_in_use_is_reported(tmp_path):
    with fixed_delay_server() as url:
        port = url.rpartition(":")[2]
        with pytest.raises(StartFailed, match="listens at"):
            run_async(_start(f"{sys.executable} -m quire.bench.engines.fixed_delay_server 0 0 --port {port}", tmp_path))


async def _start(line: str, folder: Path) -> None:
    async with start_server(line, HttpTarget(""), folder / "log"):
        pass


@pytest.mark.parametrize(
    "line, url",
    [
        ("quire serve smollm2:135m", "http://127.0.0.1:8000"),
        ("/opt/bin/llama-server -m x.gguf", "http://127.0.0.1:8080"),
        ("python -m x --port 9000", "http://127.0.0.1:9000"),
        ("python -m x --port=9001", "http://127.0.0.1:9001"),
    ],
)
def test_the_port_of_a_command_is_found(line, url):
    assert command_and_url(line)[1] == url


def test_a_free_port_replaces_the_placeholder():
    words, url = command_and_url("serve --port {port} 'a b'")
    assert words == ["serve", "--port", url.rpartition(":")[2], "a b"]
    assert command_and_url("serve on {port}", "http://127.0.0.1:77") == (["serve", "on", "77"], "http://127.0.0.1:77")
    with pytest.raises(InvalidRequest, match="port of something is unknown"):
        command_and_url("something")
