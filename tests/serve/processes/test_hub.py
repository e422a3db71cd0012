"""`quire serve --fronts 2`: two processes that serve HTTP for one engine, and act as one server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.serve.access.keys import hash_of
from tests.serve.processes.test_process import SMALL, Server, children, command, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

GREEDY: dict[str, Any] = {"model": "", "temperature": 0, "ignore_eos": True, "max_tokens": 40}
KEYS = "\n".join(
    f'[[key]]\nname = "{name}"\nsha256 = "{hash_of(name)}"\n{limits}\n'
    for name, limits in (("root", "admin = true"), ("few", "requests_per_minute = 5"), ("two", "max_concurrent = 2"))
)


@pytest.fixture(scope="module")
def server(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS)
    with serving(model_file, *SMALL, "--fronts", "2", "--max-rows", "32", "--api-keys", keys) as started:
        yield started


def runs(pid: int, what: str) -> bool:
    try:
        return what in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def fronts(server: Server) -> list[int]:
    return [pid for pid in children(server.process.pid) if runs(pid, "quire.serve.processes.front")]


def engine(server: Server) -> int | None:
    return next((pid for pid in children(server.process.pid) if runs(pid, "quire.engine.process")), None)


def http(server: Server, key: str = "root", **more: Any) -> httpx.Client:
    """One connection, and so one front."""
    head = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=head, timeout=120, trust_env=False, **more)


def front_of(server: Server, client: httpx.Client) -> int:
    """Who has the other end of a connection."""
    with client.stream("GET", "/health") as response:
        stream = response.extensions["network_stream"]
        ends = [stream.get_extra_info(each) for each in ("server_addr", "client_addr")]  # as the front has them
        ports = [f"{port:04X}" for _, port in ends]
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inode = next(  # closed connections are listed for a while, and have no process
            row[9] for row in rows if [end.split(":")[1] for end in row[1:3]] == ports and row[9] != "0"
        )
        response.read()
    return next(
        pid
        for pid in fronts(server)
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink() and str(link.readlink()) == f"socket:[{inode}]"
    )


@contextmanager
def both(server: Server) -> Iterator[dict[int, httpx.Client]]:
    """A connection to each front."""
    with ExitStack() as stack:
        found: dict[int, httpx.Client] = {}
        for _ in range(200):
            client = stack.enter_context(http(server))
            found.setdefault(front_of(server, client), client)
            if len(found) == 2:
                break
        assert len(found) == 2, "one front has all connections"
        yield found


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def text_of(client: httpx.Client, prompt: str) -> str:
    return client.post("/v1/completions", json=GREEDY | {"prompt": prompt}).json()["choices"][0]["text"]


def streamed(lines: list[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(each["choices"][0]["text"] for each in events if each["choices"])


def test_both_fronts_answer_the_same_and_count_together(server: Server) -> None:
    with both(server) as clients:
        assert sorted(clients) == sorted(fronts(server)) and engine(server) is not None
        before = metric(next(iter(clients.values())), "quire_output_tokens_total")
        texts = [text_of(client, "Once upon a time") for client in clients.values()]
        assert texts[0] == texts[1]
        for client in clients.values():
            wait_until(lambda: metric(client, "quire_output_tokens_total") == before + 80)  # noqa: B023
            assert metric(client, "quire_requests_running") == 0
            assert client.get("/ready").status_code == 200


def test_quotas_hold_for_all_fronts_together(server: Server) -> None:
    short = GREEDY | {"prompt": "One", "max_tokens": 1}

    def status(key: str) -> int:
        with http(server, key) as client:
            return client.post("/v1/completions", json=short).status_code

    assert [status("few") for _ in range(12)] == [200] * 5 + [429] * 7
    long = GREEDY | {"prompt": "One", "max_tokens": 900, "stream": True}
    with (
        http(server, "two") as one,
        http(server, "two") as other,
        one.stream("POST", "/v1/completions", json=long),
        other.stream("POST", "/v1/completions", json=long),
    ):
        assert [status("two") for _ in range(6)] == [429] * 6
    wait_until(lambda: status("two") == 200)


def test_streams_of_both_fronts_go_on_when_the_engine_is_killed(server: Server) -> None:
    prompts = [f"Story {number}: once upon a time" for number in range(16)]

    async def run() -> list[str]:
        async def one(prompt: str) -> str:
            lines = []
            body = GREEDY | {"prompt": prompt, "stream": True}
            async with asked.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    begun.add(prompt)
            return streamed(lines)

        begun: set[str] = set()
        head = {"authorization": "Bearer root"}
        async with httpx.AsyncClient(base_url=server.url, headers=head, timeout=120, trust_env=False) as asked:
            tasks = [asyncio.create_task(one(prompt)) for prompt in prompts]
            while len(begun) < len(prompts):
                await asyncio.sleep(0.01)
            pid = engine(server)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            return list(await asyncio.gather(*tasks))

    with both(server) as clients:
        alone = [text_of(next(iter(clients.values())), prompt) for prompt in prompts]
        assert asyncio.run(run()) == alone
        for client in clients.values():
            assert client.get("/ready").status_code == 200
            assert metric(client, "quire_engine_restarts_total") == 1


def test_a_front_that_is_killed_is_replaced_and_only_its_own_are_cut_off(server: Server) -> None:
    endless = GREEDY | {"prompt": "One", "max_tokens": 900, "stream": True}
    with both(server) as clients:
        (dies, doomed), (lives, spared) = clients.items()
        alone = text_of(spared, "The last front")
        with (
            doomed.stream("POST", "/v1/completions", json=endless) as cut,
            spared.stream(
                "POST", "/v1/completions", json=GREEDY | {"prompt": "The last front", "stream": True}
            ) as whole,
        ):
            pieces, lines = cut.iter_lines(), whole.iter_lines()
            said = [next(pieces) and next(lines)]
            os.kill(dies, signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                list(pieces)
            said += lines
        assert streamed(said) == alone
        wait_until(lambda: len(fronts(server)) == 2 and dies not in fronts(server))
        assert lives in fronts(server)
        wait_until(lambda: metric(spared, "quire_requests_running") == 0)
        assert f'quire_kv_blocks{{model="{server.model}",state="held"}} 0.0' in spared.get("/metrics").text
    with both(server) as clients:
        assert set(clients) == set(fronts(server))


@pytest.mark.slow
@pytest.mark.parametrize("num_fronts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_accepted_requests_finish_before_all_processes_end(model_file: Path, num_fronts: int) -> None:
    with serving(model_file, *SMALL, "--fronts", num_fronts, "--drain-seconds", "120") as server:
        family = children(server.process.pid)
        answers: list[httpx.Response] = []

        def ask(number: int) -> None:
            body = GREEDY | {
                "prompt": f"Story {number}",
                "stream": number % 2 == 0,
                "max_tokens": 150,
                "speculate": "off",
            }
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        wait_until(lambda: sum(metric_at(server, f"quire_requests_{what}") for what in ("running", "waiting")) == 24)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.process.wait(60) == 0
        assert [answer.status_code for answer in answers] == [200] * 24
        for answer in answers:
            if answer.headers["content-type"].startswith("application/json"):
                assert answer.json()["usage"]["completion_tokens"] == 150
            else:
                assert answer.text.rstrip().endswith("data: [DONE]")
        assert len(family) == {1: 1, 2: 3}[num_fronts] and not any(Path(f"/proc/{pid}").exists() for pid in family)


def metric_at(server: Server, name: str) -> float:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        return metric(client, name)


def test_nothing_outlives_the_hub(model_file: Path) -> None:
    with serving(model_file, *SMALL, "--fronts", "2") as server:
        family = children(server.process.pid)
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            body = GREEDY | {"prompt": "One", "max_tokens": 900, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                server.process.kill()
                assert "engine_died" in "".join(lines)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


def test_an_error_at_the_start_is_reported_once(tmp_path: Path) -> None:
    missing = command(tmp_path / "missing.gguf", "--port", "0", "--fronts", "3")
    done = subprocess.run(missing, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.count("error:") == 1 and "Traceback" not in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = command(tmp_path, "--port", taken.getsockname()[1], "--fronts", "2")
        done = subprocess.run(busy, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "in use" in done.stderr
