"""`quire pull` as a process that is stopped, killed and restarted. The hub is a local server."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from quire.store.model_files import NewFile
from quire.store.store import Store
from tests.cli.pseudo_terminal import on_terminal
from tests.store.hub import place_of, publish
from tests.store.server import Behaviour, serving

pytestmark = pytest.mark.pure

BODY = b"GGUF" + bytes(3_000_000)
FILE = place_of(BODY)


@pytest.fixture
def hub():
    with serving() as server:
        publish(server, "org/toy", {"toy-Q4_0.gguf": BODY})
        yield server


def environment(quire, hub: Behaviour) -> dict[str, str]:
    return {k: v for k, v in quire.environment.items() if "proxy" not in k.lower()} | {"HF_ENDPOINT": hub.url}


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_stopped_pull_resumes_where_it_was(quire, hub, number, code):
    hub.stall = 2_000_000
    command, env = quire.command("pull", "hf.co/org/toy"), environment(quire, hub)
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while sum(part.stat().st_size for part in (quire.folder / "home" / "partial").glob("*")) < 1_900_000:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    _, err = child.communicate(timeout=100)
    assert child.returncode == code and "Traceback" not in err
    assert quire("list").stdout.count("\n") == 1, "a partial download is not listed"
    hub.stall, hub.requests = None, []
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.startswith("hf.co/org/toy:latest  3.0 MB, from hf.co/org/toy@ccc")
    (requested,) = hub.ranges_of(FILE)
    assert requested is not None and int(requested.removeprefix("bytes=").rstrip("-")) >= 1_900_000


def test_a_pull_prints_the_files_and_sizes_first(quire, hub):
    command, env = quire.command("pull", "hf.co/org/toy"), environment(quire, hub)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("hf.co/org/toy:latest: toy-Q4_0.gguf, 3.0 MB from hf.co/org/toy@ccc")
    assert second == "toy-Q4_0.gguf …"
    again = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert ", 0.0 MB of it to fetch\n" in again.stderr and hub.ranges_of(FILE) == [None]


def test_a_model_is_pushed_to_a_registry_and_pulled_again(quire, docker_registry, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # names like org/repo are looked up there first
    name = f"{docker_registry.host}/me/toy:v1"
    store = Store(quire.folder / "home")
    store.create("toy", [NewFile("weights", "toy.gguf", BODY), NewFile("system", "system.txt", b"Be brief.")])
    assert quire("cp", "toy", name).returncode == 0
    done = quire("push", name)
    assert (done.returncode, done.stdout.split(" MB sent")[0]) == (0, f"pushed {name}, 3.0")
    assert "toy.gguf …" in done.stderr
    assert quire("rm", name, "toy").returncode == 0 and quire("list").stdout.count("\n") == 1
    done = quire("pull", "me/toy:v1", "--registry", docker_registry.host)
    assert done.stderr.startswith(f"me/toy:v1: 3 files, 3.0 MB from {docker_registry.host}/me/toy\n")
    assert done.stdout.startswith(f"me/toy:v1  3.0 MB, from {docker_registry.host}/me/toy, ")
    assert store.find("me/toy:v1").read_bytes() == BODY
    done = quire("push", "me/toy:v1")
    assert done.returncode == 1 and "127.0.0.1:1 cannot be reached" in done.stderr


def test_a_terminal_shows_a_bar(quire, hub):
    hub.stall = 2_000_000
    env = environment(quire, hub) | {"TERM": "xterm"}
    with on_terminal(quire.command("pull", "hf.co/org/toy"), env) as terminal:
        terminal.wait_for("toy-Q4_0.gguf")
        terminal.wait_for("2.0/3.0 MB")
        hub.go_on.set()
        terminal.wait_for("hf.co/org/toy:latest  3.0 MB")
        assert terminal.wait_for_exit() == 0
