"""The real llama-server beside Quire behind one gateway. Needs `llama-server` in PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quire.serve.http.app import all_dialects
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.test_cluster_page import free_port
from tests.serve.running import running
from tests.waiting import wait_until

BINARY = shutil.which("llama-server")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="llama-server is not in PATH"),
]

PATH = "/v1/chat/completions"
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def llama(model_file: Path, tmp_path_factory) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = [str(BINARY), "-m", str(model_file), "--port", str(port), "--alias", "toy", "-c", "1024", "-t", "1"]
    with (tmp_path_factory.mktemp("llama") / "log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                try:
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.2)
            yield url
        finally:
            child.terminate()
            child.wait(20)


def texts(gateway: RunningGateway, count: int) -> list[str]:
    found = []
    for _ in range(count):
        with gateway.http.stream("POST", PATH, json=CHAT | {"stream": True}) as response:
            assert response.status_code == 200
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        events = [json.loads(line[6:]) for line in lines[:-1]]
        found.append("".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"]))
    return found


def test_quire_and_llama_server_answer_behind_one_gateway(llama, model_file):
    with (
        running(model_file, dialects=all_dialects()) as quire,
        running_gateway([quire.url, llama], balance="round_robin") as gateway,
    ):
        assert sorted(each["kind"] for each in gateway.upstreams().values()) == ["llama-server", "quire"]
        assert all(texts(gateway, 4))
        assert all(each["num_requests"] == 2 for each in gateway.upstreams().values())
        usage = gateway.http.post(PATH, json=CHAT).json()["usage"]
        assert usage["completion_tokens"] > 0
        quire_name = quire.url.removeprefix("http://")
        gateway.http.post("/v1/upstreams/drain", json={"name": quire_name})
        answered = gateway.http.post(PATH, json=CHAT)
        assert answered.status_code == 200
        wait_until(lambda: gateway.record_of(answered).output_tokens > 0)
        messages = {"model": "toy", "max_tokens": 5, "messages": CHAT["messages"]}
        assert gateway.http.post("/v1/messages", json=messages).json()["content"]
