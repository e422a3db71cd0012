"""A real OCI registry on this machine, with its storage and its log where a test can look at them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.waiting import wait_until

PATIENCE = 60.0
REQUEST = re.compile(r'"(\w+) (/v2/\S*) HTTP/1.1" (\d+)')


@dataclass(frozen=True)
class RunningRegistry:
    """Its address and its storage."""

    host: str  # with its port
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def answered(self, method: str, part: str, count: int) -> list[int]:
        """The status codes of all requests with this method whose path contains `part`, when `count` are in the log.

        The registry writes a request into its log after the response.
        """
        codes: list[int] = []

        def are_logged() -> bool:
            requests = REQUEST.findall(self.log.read_text())
            codes[:] = [int(code) for verb, path, code in requests if verb == method and part in path]
            return len(codes) >= count

        wait_until(are_logged)
        return codes

    def blob(self, digest: str) -> Path:
        """The file of a blob in its storage."""
        return self.folder / "data/docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"


@contextmanager
def running_registry(folder: Path, **settings: object) -> Iterator[RunningRegistry]:
    """Debian's registry with its files in `folder`; anybody may read and write unless the settings say otherwise."""
    if shutil.which("docker-registry") is None:
        pytest.skip("needs a real registry: apt-get install docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": host},
        **settings,
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    running = RunningRegistry(host, folder)
    with running.log.open("w") as log:
        child = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(host, child)
            yield running
        finally:
            child.terminate()
            child.wait(PATIENCE)


def _wait_for(host: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            httpx.get(f"http://{host}/v2/", trust_env=False)
            return
        except httpx.TransportError:
            assert child.poll() is None and time.monotonic() < deadline, "the registry does not start"
            time.sleep(0.05)
