"""Figures of large models, and the arguments of their command."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import cpu_large
from quire.bench.engines.peer import LLAMA_CPP, PeerRates
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_results import FormatResult, StreamsComparison
from quire.bench.load.stream_loads import StreamSizes
from quire.devices.base import Peaks

pytestmark = pytest.mark.pure

PEAKS = Peaks(read_bytes=30e9, multiply_adds=1e12, num_threads=2, kernels="avx2")


@dataclass(frozen=True, slots=True)
class FakeBench:
    num_repeats: int = 1

    def say(self, text: str) -> None:
        pass

    def measure_stream(self, facts: Any) -> FormatResult:
        ours = SingleStream((300.0,) * 3, (24.0, 27.0, 30.0), (0.0,) * 3, (PEAKS,) * 3)
        return FormatResult(facts, ours, {LLAMA_CPP: PeerRates((100.0,), (15.0,))})

    def measure_streams(self, facts: Any, sizes: StreamSizes) -> StreamsComparison:
        def streams(rate: float) -> Any:
            return SimpleNamespace(loads=SimpleNamespace(unique=SimpleNamespace(output_per_second=rate)))

        return StreamsComparison(sizes, streams(40.0), {LLAMA_CPP: streams(20.0)})


@dataclass(frozen=True, slots=True)
class FakeFacts:
    label: str = ""
    decode_bytes: int = 1_000_000_000
    prompt_multiply_adds: int = 1_000_000


@pytest.mark.parametrize("has_streams", [True, False])
def test_figures_have_goals_and_the_label_of_the_model(has_streams, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_large, "model_path", lambda _: Path("m.gguf"))
    monkeypatch.setattr(cpu_large, "large_models", lambda: [("1B Q8_0", lambda *paths: Path("large.gguf"))])
    monkeypatch.setattr(cpu_large.ModelFacts, "of", lambda path: FakeFacts())
    figures = list(cpu_large.large_figures("1B Q8_0", FakeBench(), tmp_path, has_streams))
    assert all("1B Q8_0" in figure.name for figure in figures)
    assert [figure.verdict for figure in figures[:3]] == ["reached"] * 3
    assert [figure.verdict for figure in figures[3:]] == (["MISSED"] if has_streams else [])
    assert figures[2].value == pytest.approx(90) and figures[2].peers == {LLAMA_CPP: pytest.approx(50)}


def test_an_unknown_size_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cpu_large.main(Namespace(model="7B", rest=[], peers=()))
    assert "there is no size '7B': 1B, 3B" in capsys.readouterr().err


def test_files_are_deleted_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "large.1b.q8_0.gguf").write_bytes(b"x")
    monkeypatch.setattr(cpu_large, "home_folder", lambda _: tmp_path)
    cpu_large.main(Namespace(model="", rest=["--delete"], peers=()))
    assert capsys.readouterr().out == "0.0 GB deleted\n" and not list((tmp_path / "bench").iterdir())
