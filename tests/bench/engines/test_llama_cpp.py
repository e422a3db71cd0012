"""llama.cpp: reused once it is built, and a missing build tool is reported."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from quire.bench.engines.llama_cpp import LlamaCppTools, LlamaServerClient
from quire.bench.engines.llama_cpp_build import BUILD, TOOLS, LlamaCppBuild, get_llama_cpp
from quire.bench.engines.peer import PeerFailed, PeerUnavailable
from quire.bench.load.request_result import RequestResult
from quire.bench.load.session import LoadRequest
from quire.bench.machine.clock import clock

pytestmark = pytest.mark.pure


@pytest.fixture
def built(tmp_path: Path) -> LlamaCppBuild:
    """Tools that run: each prints its arguments as one JSON string."""
    peer = LlamaCppBuild(tmp_path / "peers" / f"llama.cpp-{BUILD}")
    for name in TOOLS:
        tool = peer.tool(name)
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text('#!/bin/sh\n[ "$1" = fail ] && { echo "no such model" >&2; exit 3; }\necho "$*"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return peer


def test_a_built_peer_is_reused(built, tmp_path, capsys):
    messages: list[str] = []
    assert get_llama_cpp(tmp_path, messages.append) == built and messages == []


def test_without_a_compiler_nothing_is_downloaded_and_the_reason_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    messages: list[str] = []
    with pytest.raises(PeerUnavailable, match=r"C\+\+ compiler"):
        get_llama_cpp(tmp_path / "home", messages.append)
    assert messages == [] and not (tmp_path / "home").exists()


def test_tools_that_this_machine_cannot_run_are_not_used(built, tmp_path, monkeypatch):
    built.tool("llama-bench").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailable):
        get_llama_cpp(tmp_path, print)


def test_the_error_of_a_tool_has_its_message(built):
    assert LlamaCppTools(built, 2).run("llama-bench", "-m", "x") == "-m x\n"
    with pytest.raises(PeerFailed, match="no such model"):
        LlamaCppTools(built, 2).run("llama-bench", "fail")


class LlamaServerHandler(BaseHTTPRequestHandler):
    """Sends events as llama-server does, and keeps all bodies."""

    bodies: list[dict] = []  # noqa: RUF012  # of all requests: the server makes a handler for each

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(body["n_predict"]):
            event = {"content": "é", "tokens": [number], "stop": False}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        last = {"content": "", "tokens": [], "stop": True, "tokens_predicted": body["n_predict"] + 2}
        self.wfile.write(f"data: {json.dumps(last)}\n\n".encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LlamaServerHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def send(url: str, max_tokens: int) -> RequestResult:
    async def work() -> RequestResult:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            return await LlamaServerClient(http).send(LoadRequest(prompt=(5, 6, 7), max_tokens=max_tokens), clock())

    return asyncio.run(work())


def test_llama_server_gets_the_same_work_as_our_engine(url):
    result = send(url, 3)
    assert result.error is None and len(result.event_times) == 3
    assert result.output_tokens == 5  # two more than its events carry
    body = LlamaServerHandler.bodies[-1]
    assert body["prompt"] == [5, 6, 7] and body["n_predict"] == 3 and body["stream"] is True
    assert body["temperature"] == 0 and body["ignore_eos"] is True


def test_a_refused_connection_is_an_error_of_the_request():
    result = send("http://127.0.0.1:1", 3)
    assert result.error and not result.is_success
