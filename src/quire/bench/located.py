"""Where the model lies that a benchmark is to use."""

from __future__ import annotations

from pathlib import Path

from quire.config import home_folder, load
from quire.store.store import DEFAULT_MODEL, Store


def located(model: str) -> Path:
    """Of a path or a name; the default model if there is none."""
    name = model or DEFAULT_MODEL
    return Path(name) if Path(name).exists() else Store(home_folder(load())).resolve(name)
