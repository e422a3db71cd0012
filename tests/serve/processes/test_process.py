"""`quire serve` as a process: its signals, its log, its certificate."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SMALL = ("--port", "0", "--num-blocks", "100", "--max-context", "1024", "--max-rows", "8")
ASK = {"model": "", "prompt": "Once upon a time", "ignore_eos": True, "temperature": 0}


class Server:
    """A child, its lines on standard error, and its address."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._is_serving = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        assert self._is_serving.wait(60), self.lines
        self.url = next(said.split()[-1] for said in map(message_of, self.lines) if said.startswith("Listening"))
        self.model = next(said.split()[1] for said in map(message_of, self.lines) if said.startswith("Serving"))

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60, trust_env=False)

    @property
    def is_listening(self) -> bool:
        where = urlsplit(self.url)
        try:
            socket.create_connection((where.hostname, where.port), 60).close()
        except ConnectionRefusedError:
            return False
        return True

    def _read(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError):  # it is closed when the test has ended
            for line in self.process.stderr:
                self.lines.append(line)
                if message_of(line).startswith("Serving"):
                    self._is_serving.set()
        self._is_serving.set()


def message_of(line: str) -> str:
    """What a line says, in either format of the log."""
    return json.loads(line)["message"] if line.startswith("{") else line


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "quire", "serve", *map(str, arguments)]


@contextmanager
def serving(*arguments: object) -> Iterator[Server]:
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True)
    server = None
    try:
        server = Server(process)
        yield server
    finally:
        process.kill()
        process.wait()
        if server is not None:
            server.reader.join(60)  # until it has read the last line
        if process.stderr is not None:
            process.stderr.close()


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def wait_for_running(server: Server, count: int) -> None:
    deadline = time.monotonic() + 30
    while f'quire_requests_running{{model="{server.model}"}} {count}.0\n' not in server.get("/metrics").text:
        assert time.monotonic() < deadline


def test_accepted_requests_finish_before_the_server_ends(model_file):
    with serving(f"mine={model_file}", *SMALL) as server:
        assert server.model == "mine"
        engines = children(server.process.pid)
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = ASK | {"max_tokens": 200, "stream": False}
            answers.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json=ASK | {"max_tokens": 200, "stream": True},
            timeout=60,
            trust_env=False,
        ) as stream:
            pieces = stream.iter_raw()
            said = next(pieces)
            for thread in threads:
                thread.start()
            wait_for_running(server, 4)
            server.process.send_signal(signal.SIGTERM)
            said += b"".join(pieces)
        for thread in threads:
            thread.join()
        assert server.process.wait(30) == 0
        assert said.rstrip().endswith(b"data: [DONE]")
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [200, 200, 200]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health", trust_env=False)
        assert engines and not any(Path(f"/proc/{pid}").exists() for pid in engines)


def test_a_server_without_fused_kernels_answers_the_same(model_file):
    texts = []
    for fuse in ("on", "off"):
        with serving(model_file, *SMALL, "--fuse", fuse) as server:
            body = ASK | {"max_tokens": 24}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False)
            texts.append(answer.json()["choices"][0]["text"])
    assert texts[0] and texts[0] == texts[1]


def test_a_request_that_outlasts_the_drain_gets_an_error(model_file):
    with serving(model_file, *SMALL, "--drain-seconds", "0.3") as server:
        body = ASK | {"max_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False) as stream:
            pieces = stream.iter_raw()
            said = next(pieces)
            server.process.send_signal(signal.SIGTERM)
            said += b"".join(pieces)
        assert b"shutting down" in said and server.process.wait(30) == 0
        assert not any("Traceback" in line for line in server.lines)


def test_a_second_signal_ends_it_at_once(model_file):
    with serving(model_file, *SMALL, "--drain-seconds", "600") as server:
        body = ASK | {"max_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60, trust_env=False) as stream:
            pieces = stream.iter_raw()
            next(pieces)
            server.process.send_signal(signal.SIGINT)
            wait_until(lambda: not server.is_listening)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(30) == 0


def test_the_log_has_ids_and_costs_and_prompts_only_if_set(model_file):
    for more, is_logged in (((), False), (("--log-prompts", "true"), True)):
        with serving(model_file, *SMALL, "--log-format", "json", *more) as server:
            body, head = ASK | {"max_tokens": 3}, {"x-request-id": "mine"}
            httpx.post(f"{server.url}/v1/completions", json=body, headers=head, timeout=60, trust_env=False)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
        logged = [json.loads(line) for line in server.lines if line.startswith("{")]
        (access,) = [each for each in logged if each["logger"] == "quire.access"]
        assert (access["request_id"], access["status"], access["output_tokens"]) == ("mine", 200, 3)
        assert access["model"] == model_file.stem and access["prompt_tokens"] > 0
        assert any("Once upon" in line for line in server.lines) == is_logged


def test_a_model_that_is_not_there_ends_the_server_with_a_sentence(tmp_path):
    missing = tmp_path / "missing.gguf"
    done = subprocess.run(command(missing, "--port", "0"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "error:" in done.stderr and "Traceback" not in done.stderr


def test_a_port_in_use_is_reported(model_file):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(model_file, "--port", port), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1 and re.search(rf"port {port}.*in use", done.stderr)


def test_a_certificate_makes_it_speak_tls(model_file, tmp_path):
    openssl = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    cert, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    try:
        subprocess.run([*openssl.split(), "-keyout", private, "-out", cert], check=True, capture_output=True)
    except OSError:
        pytest.skip("there is no openssl to make a certificate with")
    with serving(model_file, *SMALL, "--tls-cert", cert, "--tls-key", private) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{server.url}/health", verify=context, trust_env=False).status_code == 200
    wrong = subprocess.run(
        command(model_file, "--tls-cert", cert, "--tls-key", cert),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert wrong.returncode == 1 and "TLS" in wrong.stderr and "Traceback" not in wrong.stderr


def test_run_does_not_wait_for_the_packages_of_a_server():
    script = "import sys, quire.cli.app as a; a.make_typer_app(['run']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert {"starlette", "uvicorn", "zmq", "asyncio"} & set(done.stdout.split()) == set()


def test_every_line_is_json_if_set_and_the_last_says_how_the_server_ended(model_file):
    with serving(model_file, *SMALL, "--log-format", "json", "--drain-seconds", "1") as server:
        url = f"{server.url}/v1/completions"
        httpx.post(url, json={"prompt": "a", "max_tokens": 1, "n": 500}, timeout=60, trust_env=False)
        body = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as stream:
            wait_for_running(server, 1)
            server.process.send_signal(signal.SIGTERM)
            stream.read()
        assert server.process.wait(60) == 0
    said = [json.loads(line) for line in server.lines]
    assert any(each.get("error_message", "").startswith("n is 500") for each in said)
    begin, end = (next(each for each in said if each["message"].startswith(how)) for how in ("shutting", "shut down"))
    counted = re.match(r"shutting down \(SIGTERM\): ([12]) requests", begin["message"])
    assert counted is not None, "1, or 2 if the last question for metrics is still counted"
    assert end["reason"] == "SIGTERM" and end["drained"] + end["cut_off"] == int(counted[1])


def test_a_failed_start_is_reported_in_json_too(tmp_path):
    words = command(tmp_path / "none.gguf", "--log-format", "json")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and said[-1]["level"] == "error" and "none.gguf" in said[-1]["message"]
