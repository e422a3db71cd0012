"""`quire serve` as people start it, for tests that ask what a server really does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 60


class Served:
    """A child with the real model, its address, and what it answered so far."""

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

    def ask(self, path: str, body: dict[str, Any], **headers: str) -> None:
        answer = self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        self.usages.append(answer.json()["usage"])

    @property
    def hit_rate(self) -> float:
        """As it told its clients."""
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
def serving(*arguments: object) -> Iterator[Served]:
    command = [sys.executable, "-m", "quire", "serve", *map(str, arguments), "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    made = None
    try:
        made = Served(process)
        yield made
    finally:
        process.terminate()
        process.wait(30)
        if made is not None:
            made.http.close()
            made._reader.join()
        if process.stderr is not None:
            process.stderr.close()


def advise(*arguments: object) -> dict[str, Any]:
    """`quire advise --json`."""
    command = [sys.executable, "-m", "quire", "advise", *map(str, arguments), "--json"]
    environment = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_trace(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path
