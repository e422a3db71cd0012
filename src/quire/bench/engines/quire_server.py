"""Our own server in a child process, as `quire serve` builds it: with the instant engine, or with many models."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from quire.bench.engines.server_process import child_server
from quire.config import Config, load
from quire.serve.http.app import all_dialects
from quire.serve.processes.server import Serving
from quire.serve.residency.engines import EngineLauncher
from quire.serve.residency.local import LocalResidency
from quire.serve.residency.models import Models
from quire.serve.residency.shelf import ModelEntry
from quire.serve.service import Service

INSTANT_ENGINE = "quire.bench.engines.instant_engine:main"
FLAGS = {"port": 0, "drain_seconds": 1, "log_level": "warning"}


def one_model_server(model: str, pace: str | None, **settings: Any) -> AbstractContextManager[tuple[int, str]]:
    """Serve the model as "m". With a pace (tokens a second, or "inf") the instant engine answers instead of it."""
    return _in_child(serve_one, model, pace, settings)


def many_models_server(
    model: Path, num_models: int, memory_budget: float, max_context: int
) -> AbstractContextManager[tuple[int, str]]:
    """Serve the model under the names m0, m1, …, each with its own engine, within a memory budget in bytes."""
    settings = {"max_context": max_context, "load_patience": 600.0, "memory_budget": memory_budget / 1e9}
    return _in_child(serve_many, str(model), num_models, settings)


def _in_child(function: Callable[..., None], *arguments: Any) -> AbstractContextManager[tuple[int, str]]:
    """Call a function of this module in a child process. Arguments are passed by their repr."""
    call = f"{function.__name__}({', '.join(map(repr, arguments))})"
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import {function.__name__}; {call}"
    return child_server([sys.executable, "-c", code])


def serve_one(model: str, pace: str | None, settings: Mapping[str, Any]) -> None:
    """Run in the child: serve one model until a signal."""
    launcher = EngineLauncher() if pace is None else EngineLauncher(entry=f"{INSTANT_ENGINE} {pace}")
    _serve([ModelEntry("m", lambda: Path(model))], load({**FLAGS, **settings}, {}), launcher)


def serve_many(model: str, num_models: int, settings: Mapping[str, Any]) -> None:
    """Run in the child: serve copies of one model until a signal."""
    with tempfile.TemporaryDirectory(prefix="quire-", dir=Path(model).resolve().parent) as folder:
        names = [f"m{number}" for number in range(num_models)]
        copies = {name: _linked_copy(Path(model), Path(folder, name)) for name in names}
        entries = [ModelEntry(name, partial(copies.__getitem__, name)) for name in names]
        _serve(entries, load({**FLAGS, **settings}), EngineLauncher())


def _serve(entries: list[ModelEntry], config: Config, launcher: EngineLauncher) -> None:
    models = Models(LocalResidency(entries, config, launcher, lambda loading: None), config)
    Serving(Service(config, models, all_dialects()), lambda url: print(url, flush=True)).run_until_signal()


def _linked_copy(path: Path, folder: Path) -> Path:
    """Hard-link the model's files into a new folder: two names of one file would share an engine."""
    folder.mkdir()
    for file in path.iterdir() if path.is_dir() else [path]:
        (folder / file.name).hardlink_to(file.resolve())
    return folder if path.is_dir() else folder / path.name
