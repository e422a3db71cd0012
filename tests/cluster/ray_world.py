"""A real Ray cluster of several nodes on this machine, driven by `quire cluster` as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from quire.cluster.guard import is_locked
from tests.cluster.test_guarded import has_process
from tests.waiting import wait_until

FAST_CHECKS = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
COMMAND_SECONDS = 150
SETTINGS = "{max_context: 512, num_blocks: 1200, max_rows: 32, drain_seconds: 20}"


class RayWorld:
    """Nodes of Ray, the home folder of `quire cluster`, and the cluster file."""

    def __init__(self, folder: Path, model: Path, port: int) -> None:
        self.cluster_utils = pytest.importorskip("ray.cluster_utils")
        self.home = folder / "home"
        self.file = folder / "world.yaml"
        self.model = model
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.cluster: Any = None
        self.nodes: list[Any] = []

    def start(self, *cpus: int) -> None:
        """Start a head without CPUs, and a node for each of these numbers of CPUs."""
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": FAST_CHECKS}
        for is_last in (False, False, True):
            try:
                self.cluster = self.cluster_utils.Cluster(initialize_head=True, head_node_args=head)
                break
            except Exception:  # Ray gives a node 30 s to start: too few on a machine that is busy
                if is_last:
                    raise
        self.nodes = [self.cluster.add_node(num_cpus=each) for each in cpus]

    def write(self, *lines: str, gateway: str = "") -> Path:
        """Write the cluster file, with these further lines of the model `m`."""
        self.file.write_text(
            f"orphan_seconds: 600\ngateway: {{port: {self.port}, settings: {{check_seconds: 0.5{gateway}}}}}\n"
            f"models:\n  m:\n    model: {self.model}\n    settings: {SETTINGS}\n"
            + "".join(f"    {line}\n" for line in lines)
        )
        return self.file

    def quire(self, *words: str, code: int = 0) -> str:
        """Run `quire cluster WORDS`; return what it prints."""
        command = [sys.executable, "-m", "quire", "cluster", *words, "--home", str(self.home)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
        assert ran.returncode == code, (words, ran.stdout[-2000:], ran.stderr[-2000:])
        return ran.stdout if code == 0 else ran.stderr

    def up(self, wait: float = 120) -> str:
        return self.quire("up", str(self.file), "--address", self.cluster.address, "--wait", str(wait))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.quire("status", "--json"))
        return found

    def replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["replicas"]
        return found

    def wait_replicas(self, count: int, seconds: float = 120) -> list[dict[str, Any]]:
        """Wait until so many replicas are ready and get requests, and no others are left."""
        found: list[dict[str, Any]] = []

        def are_ready() -> bool:
            found[:] = self.replicas()
            return len(found) == count and all(each["state"] == "ready" and each["is_joined"] for each in found)

        wait_until(are_ready, seconds)
        return found

    def saved(self) -> dict[str, Any]:
        """The controller's state on disk."""
        found: dict[str, Any] = json.loads((self.home / "clusters" / "world" / "state.json").read_text())
        return found

    def run_folder(self) -> Path:
        return next((self.home / "clusters" / "world" / "run").iterdir())

    def owner_pid(self, id: str) -> int:
        """The worker of Ray that looks after this server."""
        path = str(self.run_folder() / f"{id}.owner")
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if any(str(each.readlink()) == path for each in (process / "fd").iterdir()):
                    return int(process.name)
        raise AssertionError(f"no actor looks after {id}")

    def node_of(self, id: str) -> Any:
        """The node of Ray whose raylet has started that worker."""
        parent = int(Path(f"/proc/{self.owner_pid(id)}/stat").read_text().rpartition(")")[2].split()[1])
        return next(each for each in self.nodes if raylet_of(each) == parent)

    def close(self) -> None:
        """End everything that a failed test may have left: servers by their guards' files, then Ray."""
        for path in self.home.glob("clusters/*/run/*/*.alive"):
            if is_locked(path):
                found = json.loads(path.read_text() or "{}")
                for name in ("guard", "server"):
                    with suppress(OSError, KeyError):
                        os.kill(found[name], signal.SIGKILL)
        if self.cluster is not None:
            self.cluster.shutdown()

    def guards(self) -> list[str]:
        """The servers that run."""
        return [path.stem for path in self.home.glob("clusters/*/run/*/*.alive") if is_locked(path)]


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def kill_raylet(node: Any) -> None:
    """kill -9 of a raylet; Ray's workers on it end by themselves."""
    pid = raylet_of(node)
    os.kill(pid, signal.SIGKILL)
    node.all_processes["raylet"][0].process.wait()
    wait_until(lambda: not has_process(pid))


def kill_server(pid: int) -> None:
    """kill -9 of a server with its engine."""
    assert pid > 1
    os.killpg(pid, signal.SIGKILL)


@contextmanager
def ray_world(folder: Path, model: Path, port: int) -> Iterator[RayWorld]:
    world = RayWorld(folder, model, port)
    try:
        yield world
    finally:
        world.close()
