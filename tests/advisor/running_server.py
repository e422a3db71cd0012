"""`quire serve` as a child process, to compare simulations with a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

START_SECONDS = 60


class RunningServer:
    """A child process with the bundled model: its URL, and the usage of its answers so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._is_serving = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._is_serving.wait(START_SECONDS) and process.poll() is None, self.lines
        self.url = next(line.split()[-1] for line in self.lines if line.startswith("Listening"))
        self.http = httpx.Client(base_url=self.url, timeout=120, trust_env=False)
        self.usages: list[dict[str, Any]] = []

    def post(self, path: str, body: dict[str, Any], **headers: str) -> None:
        answer = self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        self.usages.append(answer.json()["usage"])

    @property
    def hit_rate(self) -> float:
        """The hit rate that it reported to its clients."""
        cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for usage in self.usages)
        return cached / sum(usage["prompt_tokens"] for usage in self.usages)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("Serving"):
                self._is_serving.set()
        self._is_serving.set()


@contextmanager
def serving(*arguments: object) -> Iterator[RunningServer]:
    command = [sys.executable, "-m", "quire", "serve", *map(str, arguments), "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    server = None
    try:
        server = RunningServer(process)
        yield server
    finally:
        process.terminate()
        process.wait(30)
        if server is not None:
            server.http.close()
            server._reader.join()
        if process.stderr is not None:
            process.stderr.close()


def advise(*arguments: object) -> dict[str, Any]:
    """Run `quire advise --json`; return the object."""
    command = [sys.executable, "-m", "quire", "advise", *map(str, arguments), "--json"]
    environment = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
