"""Where the model lies that a benchmark is to use."""

from __future__ import annotations

from pathlib import Path

from quire.config import load
from quire.store.store import DEFAULT_MODEL, open_store


def located(model: str) -> Path:
    """Of a path or a name; the default model if there is none."""
    name = model or DEFAULT_MODEL
    return Path(name) if Path(name).exists() else open_store(load()).resolve(name)
