"""The bundled model's metadata as a plain mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def metadata(model_file: Path) -> dict[str, Any]:
    """Every key of the file, read by the `gguf` package and so independent of our own reader."""
    gguf = pytest.importorskip("gguf")
    return {name: value.contents() for name, value in gguf.GGUFReader(model_file).fields.items()}
