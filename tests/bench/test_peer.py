"""The peer: taken where it was built, and what is missing to build it is said."""

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

from quire.bench.llama_cpp import UNNAMED, LlamaServer, PeerFailed, Tools
from quire.bench.peer import BUILD, TOOLS, NoPeer, Peer, get_peer

pytestmark = pytest.mark.pure


@pytest.fixture
def built(tmp_path: Path) -> Peer:
    """Tools that run: each prints its arguments as one JSON string."""
    peer = Peer(tmp_path / "peers" / f"llama.cpp-{BUILD}")
    for name in TOOLS:
        tool = peer.tool(name)
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text('#!/bin/sh\n[ "$1" = fail ] && { echo "no such model" >&2; exit 3; }\necho "$*"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return peer


def test_what_was_built_is_taken_from_its_folder(built, tmp_path, capsys):
    said: list[str] = []
    assert get_peer(tmp_path, said.append) == built and said == []


def test_without_a_compiler_nothing_is_fetched_and_the_reason_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with pytest.raises(NoPeer, match=r"C\+\+ compiler"):
        get_peer(tmp_path / "home", said.append)
    assert said == [] and not (tmp_path / "home").exists()


def test_tools_that_this_machine_cannot_run_are_not_taken(built, tmp_path, monkeypatch):
    built.tool("llama-bench").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPeer):
        get_peer(tmp_path, print)


def test_a_tool_that_fails_says_so_in_its_own_words(built):
    assert Tools(built, 2).run("llama-bench", "-m", "x") == "-m x\n"
    with pytest.raises(PeerFailed, match="no such model"):
        Tools(built, 2).run("llama-bench", "fail")


def test_a_format_is_made_once(built, tmp_path):
    model = tmp_path / "a.gguf"
    model.write_bytes(b"12345")
    built.tool("llama-quantize").write_text('#!/bin/sh\n[ "$4" = Q8_0 ] && cp "$2" "$3"\n')
    made = Tools(built, 2).reformat(model, "q8_0")
    assert made == built.formats / "a-5.q8_0.gguf" and made.read_bytes() == b"12345"
    built.tool("llama-quantize").unlink()
    assert Tools(built, 2).reformat(model, "q8_0") == made


class Speaks(BaseHTTPRequestHandler):
    """Server-sent events as llama-server sends them; every body that came is kept."""

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
    with ThreadingHTTPServer(("127.0.0.1", 0), Speaks) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_llama_server_is_asked_for_the_same_work_as_we_are(url):
    async def tokens() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            return [list(batch) async for batch in LlamaServer(client).stream([5, 6, 7], 3)]

    assert [batch for batch in asyncio.run(tokens()) if batch] == [[0], [1], [2], [UNNAMED, UNNAMED]]
    body = Speaks.bodies[-1]
    assert body["prompt"] == [5, 6, 7] and body["n_predict"] == 3 and body["stream"] is True
    assert body["temperature"] == 0 and body["ignore_eos"] is True
