"""Servers that the benchmark starts: a user's command, or one of our own servers in a child process.

A user's command is not run by a shell. `{port}` in it is replaced by a free port; without it, the port is the value of
--port, or the default port of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from quire.bench.engines.http_client import HttpEngineClient, HttpTarget, ServerUnusable, first_model
from quire.bench.engines.http_connection import ServerAddress
from quire.bench.load.session import LoadRequest, chat_message
from quire.bench.machine.clock import clock
from quire.types.errors import InvalidRequest, QuireError

DEFAULT_PORTS = {
    "quire": 8000,
    "vllm": 8000,
    "sglang": 30000,
    "llama-server": 8080,
    "ollama": 11434,
    "trtllm-serve": 8000,
}
PORT_FLAGS = ("--port", "-p")
POLL_SECONDS = 0.02
NUM_LOG_LINES = 5  # shown if the server ends
STOP_SECONDS = 20.0


class StartFailed(QuireError):
    """A command ended, or did not serve in time."""

    code = "start_failed"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers."""

    target: HttpTarget
    process: int
    start_seconds: float  # from the start of the command to the first token of an answer


def command_and_url(command: str, url: str = "") -> tuple[list[str], str]:
    """Return the command's words, and the URL at which the server will listen: `url` if it is given."""
    port = ServerAddress.of(url).port if url else free_port() if "{port}" in command else None
    words = shlex.split(command.replace("{port}", str(port)))
    if not words:
        raise InvalidRequest("The command to start is empty.", field="start")
    if url:
        return words, url
    for flag, value in pairwise(words):
        if flag in PORT_FLAGS and value.isdecimal():
            port = int(value)
    port = port or next((int(word.split("=")[1]) for word in words if word.startswith("--port=")), None)
    port = port or next((DEFAULT_PORTS[Path(word).name] for word in words if Path(word).name in DEFAULT_PORTS), None)
    if port is None:
        raise InvalidRequest(f"The port of {words[0]} is unknown: write --port {{port}} in the command.", field="start")
    return words, f"http://127.0.0.1:{port}"


@asynccontextmanager
async def start_server(
    command: str, target: HttpTarget, log: Path, timeout: float = 600.0
) -> AsyncIterator[RunningServer]:
    """Run a server while the context is open, from its first answer on. Its output goes to the log."""
    words, url = command_and_url(command, target.url)
    target = replace(target, url=url)
    _check_port_is_free(target.url)
    with log.open("wb") as out:
        began = clock()
        try:
            process = subprocess.Popen(
                words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise StartFailed(f"{words[0]} cannot be started: {error.strerror}.") from error
        try:
            target = await _wait_for_answer(process, target, log, began + timeout)
            yield RunningServer(target, process.pid, clock() - began)
        finally:
            _signal_group(process, signal.SIGTERM)  # before any await, which may be cancelled
            await asyncio.to_thread(_wait, process)


async def _wait_for_answer(
    process: subprocess.Popen[bytes], target: HttpTarget, log: Path, deadline: float
) -> HttpTarget:
    """Send one-token requests until one is answered. Return the target with the model's name."""
    probe = LoadRequest((chat_message("user", "hi"),), 1)
    error = "none"
    while clock() < deadline:
        if process.poll() is not None:
            last = " / ".join(log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:])
            raise StartFailed(f"{process.args!r} ended with {process.returncode} before it served: {last}")
        try:
            named = target if target.model else replace(target, model=await first_model(target))
            client = HttpEngineClient(replace(named, ignore_eos=False))
            result = await client.send(probe, clock())
            client.close()
            if result.is_success:
                return named
            error = result.error or "an empty answer"
        except ServerUnusable as unusable:
            error = str(unusable)
        await asyncio.sleep(POLL_SECONDS)
    raise StartFailed(f"{target.url} did not serve in time. Last error: {error}")


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process that leads its group, with the group, and wait for its end."""
    _signal_group(process, signal.SIGTERM)
    _wait(process)


def _signal_group(process: subprocess.Popen[bytes], sign: int) -> None:
    """Send a signal to the process group that it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _check_port_is_free(url: str) -> None:
    """Raise if a server listens there already: it would be measured instead."""
    address = ServerAddress.of(url)
    with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), timeout=1.0):
        raise StartFailed(f"Something listens at {url} already: stop it, or write --port {{port}} in the command.")


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def child_server(command: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Run a server that prints its URL as its first line. Yield its process id and the URL."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
