"""Find the model that a benchmark uses."""

from __future__ import annotations

from pathlib import Path

from quire.config import load
from quire.store.store import DEFAULT_MODEL, open_store


def model_path(model: str) -> Path:
    """Return the path of a model given by path or name; empty: the default model."""
    name = model or DEFAULT_MODEL
    return Path(name) if Path(name).exists() else open_store(load()).resolve(name)
