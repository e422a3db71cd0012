"""What can be checked of the images without a container engine: their files, their user, their commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
IMAGES = ("Dockerfile", "Dockerfile.cuda")


def steps(name: str) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest) of each, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word.upper(), rest) for word, rest in (line.split(" ", 1) for line in lines)]


def last(name: str, word: str) -> str:
    return [rest for found, rest in steps(name) if found == word][-1]


@pytest.mark.parametrize("name", IMAGES)
def test_it_runs_as_a_user_that_owns_its_models_and_is_not_root(name):
    user = last(name, "USER")
    made = [rest for word, rest in steps(name) if word == "RUN" and "useradd" in rest]
    assert user not in ("root", "0") and any(f"--create-home {user}" in each for each in made)
    assert any(f"install --directory --owner {user} {last(name, 'VOLUME')}" in each for each in made)
    assert f"QUIRE_HOME={last(name, 'VOLUME')}" in last(name, "ENV")


@pytest.mark.parametrize("name", IMAGES)
def test_what_is_copied_is_there_and_sent_to_the_builder(name):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [
        part for word, rest in steps(name) if word == "COPY" and "--from" not in rest for part in rest.split()[:-1]
    ]
    assert copied and "*" in ignored
    for each in copied:
        assert (ROOT / each).exists() and f"!{each}" in ignored, each


@pytest.mark.parametrize("name", IMAGES)
def test_the_command_is_one_that_quire_understands(name):
    command = [*json.loads(last(name, "ENTRYPOINT")), *json.loads(last(name, "CMD"))]
    assert command[0] == "quire" and "0.0.0.0" in command  # others than the container itself can reach it
    ran = subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    wrong = subprocess.run([sys.executable, "-m", *command, "--no-such", "--help"], capture_output=True, check=False)
    assert wrong.returncode != 0


@pytest.fixture
def health() -> Iterator[ThreadingHTTPServer]:
    """A server whose /health answers with `server.status`."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(self.server.status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("name", IMAGES)
def test_the_health_check_passes_with_a_healthy_server_and_fails_with_another(name, health):
    (_, listed) = re.split(r"\bCMD ", last(name, "HEALTHCHECK"))
    command = [part.replace(f":{last(name, 'EXPOSE')}", f":{health.server_port}") for part in json.loads(listed)]
    assert str(health.server_port) in shlex.join(command)
    for status, is_healthy in ((200, True), (503, False)):
        health.status = status
        ran = subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False)
        assert (ran.returncode == 0) == is_healthy, ran.stderr
