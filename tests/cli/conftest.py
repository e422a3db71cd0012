"""`quire` as a process with its own home folder, and a stand-in for the engine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.store.manifest import Manifest, StoredFile
from quire.store.store import Store
from tests.store.docker_registry import RunningRegistry, running_registry

STAND_IN = Path(__file__).with_name("stand_in.py")


@dataclass
class Quire:
    """Starts `quire`, and reads the log of its stand-in engine."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
        ours = {"QUIRE_HOME": str(self.folder / "home"), "QUIRE_STAND_IN": str(self.folder / "log")}
        ours |= {"QUIRE_REGISTRY": "127.0.0.1:1", "NO_PROXY": "127.0.0.1,localhost"}  # nothing listens there
        return kept | ours | {"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}

    @property
    def model(self) -> str:
        path = self.folder / "toy.gguf"
        path.write_bytes(b"GGUF")
        return str(path)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(STAND_IN), *arguments]

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **source,
        )

    def resume_answer(self) -> None:
        """End the pause of an answer (see stand_in.py)."""
        (self.folder / "go-on").touch()

    def logged(self, what: str) -> list[dict]:
        """Return the entries of one kind in the stand-in's log."""
        log = self.folder / "log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line["what"] == what]


@pytest.fixture
def quire(tmp_path) -> Quire:
    return Quire(tmp_path)


@pytest.fixture
def docker_registry(tmp_path_factory) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def store_default_model(quire: Quire) -> None:
    """Put a model named smollm2:135m into the store."""
    store = Store(quire.folder / "home")
    store.layout.make()
    body = b"GGUF"
    digest = hashlib.sha256(body).hexdigest()
    store.layout.blob(digest).write_bytes(body)
    file = StoredFile("weights", digest, len(body), "x.gguf")
    manifest = Manifest("smollm2", "135m", (file,), "a test", "2026-01-01", "gguf", sampling={"temperature": 0.2})
    path = store.layout.manifests / "smollm2" / "135m.json"
    path.parent.mkdir()
    path.write_text(manifest.to_json())
