"""Real processes, kill -9 under 64 streams: of a server, and of the gateway itself. No stream is answered twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_STREAMS = 64
PATH = "/v1/chat/completions"
QUIRE = [sys.executable, "-m", "quire"]
SERVE = ("--only", "--port", "0", "--max-context", "512", "--num-blocks", "1200", "--max-rows", "32")


class Process:
    """A server in its own process group. Its output goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen([*QUIRE, *arguments], stderr=output, start_new_session=True)
        wait_until(lambda: "Listening at " in log.read_text() or self._process.poll() is not None)
        self.url = log.read_text().partition("Listening at ")[2].split()[0]

    def kill(self) -> None:
        """kill -9 of the process and of its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def process(log: Path, *arguments: str) -> Iterator[Process]:
    started = Process(log, *arguments)
    try:
        yield started
    finally:
        started.stop()


def wait_ready(url: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} is not ready")


def body(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Tell story number {number} about a fox."}]
    return {"messages": messages, "temperature": 0, "max_tokens": 48, "stream": True, "ignore_eos": True}


BODIES = [body(number) for number in range(NUM_STREAMS)]


class Stream:
    """One stream as its client sees it."""

    def __init__(self) -> None:
        self.text = ""
        self.is_done = False
        self.error = ""
        self.ids: set[str] = set()

    async def run(
        self, client: httpx.AsyncClient, url: str, asked: dict[str, Any], begun: asyncio.Semaphore | None
    ) -> None:
        try:
            async with client.stream("POST", url + PATH, json=asked) as response:
                if response.status_code != 200:
                    self.error = (await response.aread()).decode()
                    return
                async for line in response.aiter_lines():
                    self._read(line)
                    if begun is not None and self.text:
                        begun.release()
                        begun = None
        except httpx.HTTPError as error:
            self.error = repr(error)

    def _read(self, line: str) -> None:
        if line == "data: [DONE]":
            assert not self.is_done
            self.is_done = True
        elif line.startswith("data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                self.error = line
                return
            self.ids.add(event["id"])
            self.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])


async def streams(
    url: str, kill: Any = None, num_begun: int = NUM_STREAMS // 2, bodies: Sequence[dict[str, Any]] = BODIES
) -> list[Stream]:
    """Run a stream for each body; when some of them have text, call `kill`."""
    limits = httpx.Limits(max_connections=NUM_STREAMS)
    begun = asyncio.Semaphore(0)
    async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as client:
        made = [Stream() for _ in bodies]
        tasks = [
            asyncio.create_task(each.run(client, url, asked, begun)) for each, asked in zip(made, bodies, strict=True)
        ]
        if kill is not None:
            for _ in range(num_begun):
                await begun.acquire()
            await asyncio.to_thread(kill)
        await asyncio.gather(*tasks)
    return made


@pytest.fixture
def fleet(model_file: Path, tmp_path: Path) -> Iterator[tuple[list[Process], Process]]:
    with ExitStack() as stack:
        logs = [tmp_path / f"server-{number}.log" for number in range(2)]
        servers = [stack.enter_context(process(log, "serve", f"m={model_file}", *SERVE)) for log in logs]
        for server in servers:
            wait_ready(server.url)
        flags = [word for server in servers for word in ("--upstream", server.url)]
        gateway = stack.enter_context(process(tmp_path / "gateway.log", "gateway", *flags, "--port", "0"))
        wait_ready(gateway.url)
        yield servers, gateway


def test_kill_9_of_a_server_under_64_streams_changes_no_text(fleet):
    servers, gateway = fleet
    undisturbed = asyncio.run(streams(gateway.url))
    assert all(each.is_done and not each.error for each in undisturbed)
    disturbed = asyncio.run(streams(gateway.url, servers[0].kill))
    assert [each.error for each in disturbed] == [""] * NUM_STREAMS
    assert all(each.is_done and len(each.ids) == 1 for each in disturbed)
    assert [each.text for each in disturbed] == [each.text for each in undisturbed]
    listed = httpx.get(f"{gateway.url}/v1/upstreams").json()["upstreams"]
    assert sum(each["num_resumed"] for each in listed) > 0


def test_kill_9_of_the_gateway_under_64_streams_ends_each_with_its_text_or_an_error(fleet):
    servers, gateway = fleet
    undisturbed = asyncio.run(streams(gateway.url))
    disturbed = asyncio.run(streams(gateway.url, gateway.kill))
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert (after.is_done and after.text == before.text) or after.error
        assert before.text.startswith(after.text) and len(after.ids) <= 1
    assert any(each.error for each in disturbed)
    deadline = time.monotonic() + 30  # the servers have noticed, and compute nothing for clients that are gone
    while time.monotonic() < deadline:
        loads = [httpx.get(f"{server.url}/v1/load").json()["models"]["m"] for server in servers]
        if not any(load["num_running"] + load["num_waiting"] for load in loads):
            return
        time.sleep(0.2)
    raise AssertionError("requests of a dead gateway still run")
