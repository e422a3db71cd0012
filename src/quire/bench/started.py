"""A server that the benchmark starts itself: how long until it answers, and its end.

The command is not run by a shell. `{port}` in it is replaced by a free port; without, the port is the one that it names
with --port, or the one that is known of its program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from quire.bench.asks import Ask, says
from quire.bench.connection import Address
from quire.bench.heard import clock
from quire.bench.over_http import OverHttp, ServerUnusable, Target, first_model
from quire.types.errors import InvalidRequest, QuireError

PORTS = {"quire": 8000, "vllm": 8000, "sglang": 30000, "llama-server": 8080, "ollama": 11434, "trtllm-serve": 8000}
PORT_FLAGS = ("--port", "-p")
EVERY = 0.02  # seconds between looks at a server that is starting
LAST_LINES = 5
STOP_SECONDS = 20.0


class StartFailed(QuireError):
    """The command ended, or did not serve in time."""

    code = "start_failed"


@dataclass(frozen=True, slots=True)
class Running:
    """A server of ours."""

    target: Target
    process: int
    start_seconds: float  # from its start to the first token of an answer


def command_and_url(command: str, url: str = "") -> tuple[list[str], str]:
    """The words to run, and where the server will listen: at the URL, if one is given."""
    port = Address.of(url).port if url else _free_port() if "{port}" in command else None
    words = shlex.split(command.replace("{port}", str(port)))
    if not words:
        raise InvalidRequest("A command to start is needed.", field="start")
    if url:
        return words, url
    for flag, value in pairwise(words):
        if flag in PORT_FLAGS and value.isdecimal():
            port = int(value)
    port = port or next((int(word.split("=")[1]) for word in words if word.startswith("--port=")), None)
    port = port or next((PORTS[Path(word).name] for word in words if Path(word).name in PORTS), None)
    if port is None:
        raise InvalidRequest(f"Where will {words[0]} listen? Write --port {{port}} in the command.", field="start")
    return words, f"http://127.0.0.1:{port}"


@asynccontextmanager
async def started(command: str, target: Target, log: Path, timeout: float = 600.0) -> AsyncIterator[Running]:
    """While it is open, the server runs. What it says goes to the log."""
    words, url = command_and_url(command, target.url)
    target = replace(target, url=url)
    _check_free(target.url)
    with log.open("wb") as out:
        began = clock()
        try:
            process = subprocess.Popen(
                words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise StartFailed(f"{words[0]} cannot be started: {error.strerror}.") from error
        try:
            target = await _answers(process, target, log, began + timeout)
            yield Running(target, process.pid, clock() - began)
        finally:
            _signal(process, signal.SIGTERM)  # at once: who waits below may be interrupted
            await asyncio.to_thread(_wait, process)


async def _answers(process: subprocess.Popen[bytes], target: Target, log: Path, until: float) -> Target:
    """Ask for one token again and again until it comes."""
    probe = Ask((says("user", "hi"),), 1)
    why = "nothing"
    while clock() < until:
        if process.poll() is not None:
            last = " / ".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise StartFailed(f"{process.args!r} ended with {process.returncode} before it served: {last}")
        try:
            named = target if target.model else replace(target, model=await first_model(target))
            server = OverHttp(replace(named, ignores_end=False))
            heard = await server.ask(probe, clock())
            server.close()
            if heard.is_good:
                return named
            why = heard.error or "an empty answer"
        except ServerUnusable as error:
            why = str(error)
        await asyncio.sleep(EVERY)
    raise StartFailed(f"{target.url} did not serve in time. The last that was heard: {why}")


def _signal(process: subprocess.Popen[bytes], sign: int) -> None:
    """To the whole group that it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        process.wait()


def _check_free(url: str) -> None:
    """Whoever listens there now would be measured in its place."""
    address = Address.of(url)
    with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), timeout=1.0):
        raise StartFailed(f"Something listens at {url} already: stop it, or write --port {{port}} in the command.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
