"""A toy checkpoint on disk, with a tokenizer of its own, and an LLM of it on the stand-in device."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.engine.llm import LLM, EnginePlace, LoadedModel
from quire.scheduler.step_costs import StepCosts
from tests.engine.driver import Driver
from tests.engine.spelled import save_spelled
from tests.models.toys import make_toy
from tests.runner.stand_in import InterpreterDevice, devices_here

CHILD = "tests.engine.child:main"
NATIVE = pytest.param(
    "cpu", marks=pytest.mark.skipif("cpu" not in devices_here(), reason="the extension was not built")
)


class ChildLLM(LLM):
    """An LLM whose child process has the stand-in for its CPU."""

    def __init__(self, model: str | Path, **settings: Any) -> None:
        self._model = LoadedModel(model, EnginePlace("cpu", False, CHILD), None, settings)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_spelled(make_toy("llama").torch_model, tmp_path_factory.mktemp("toy"))


@pytest.fixture(params=[pytest.param(d, marks=pytest.mark.gpu) if d == "cuda" else d for d in devices_here()])
def each_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Drivers of this test run on each device in turn."""
    monkeypatch.setattr(Driver, "device_name", request.param)
    name: str = request.param
    return name


@pytest.fixture(params=["stand-in", "chooser-drafts"])
def each_depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of this test verify drafts with one step in flight, then with two."""
    monkeypatch.setattr(Driver, "device_name", request.param)


@pytest.fixture(params=["stand-in", NATIVE])
def stand_in_and_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers of this test run on the stand-in, then with the native kernels of the CPU."""
    monkeypatch.setattr(Driver, "device_name", request.param)


@pytest.fixture(params=["stand-in", "chooser-drafts", NATIVE])
def each_depth_and_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `each_depth`, then with the native kernels of the CPU."""
    monkeypatch.setattr(Driver, "device_name", request.param)


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are chosen as if every step took the same time: on a busy machine they may not pay by measured times."""
    monkeypatch.setattr(StepCosts, "seconds", lambda costs, num_tokens: 1.0)


@pytest.fixture
def llm(toy_folder: Path) -> Iterator[LLM]:
    with LLM(toy_folder, device=InterpreterDevice(), num_blocks=120, max_rows=32) as opened:
        yield opened


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets are made: a path short enough for one, and nothing else in it."""
    folder = Path(tempfile.mkdtemp(prefix="q", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
