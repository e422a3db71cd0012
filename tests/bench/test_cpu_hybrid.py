"""Random models with states: which parts are measured, and which files there are."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import cpu_hybrid
from quire.bench.cpu_hybrid import FILES
from quire.bench.engines.peer import LLAMA_CPP, PeerRates
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_results import FormatResult, StreamsComparison
from quire.bench.load.stream_loads import StreamSizes

pytestmark = pytest.mark.pure

FACTS: Any = SimpleNamespace(label="lfm2 q4_0", prompt_multiply_adds=1, decode_bytes=1)


def streams(unique: float, shared: float) -> Any:
    rates = {"unique": unique, "shared": shared}
    return SimpleNamespace(
        loads=SimpleNamespace(**{name: SimpleNamespace(output_per_second=rate) for name, rate in rates.items()})
    )


class FakeBench:
    def __init__(self, *arguments: object) -> None:
        pass

    def measure_stream(self, facts: Any, num_turns: int) -> FormatResult:
        peers = {LLAMA_CPP: PeerRates((200.0,), (50.0,))}
        return FormatResult(facts, SingleStream((500.0,), (60.0,), (0.0,), ()), peers)

    def measure_streams(self, facts: Any, sizes: StreamSizes) -> StreamsComparison:
        return StreamsComparison(sizes, streams(90.0, 300.0), {LLAMA_CPP: streams(40.0, 40.0)})


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    def start(model: str, only: tuple[str, ...]) -> list[str]:
        cpu_hybrid.main(Namespace(model=model, quick=True, peers=(), only=only))
        return capsys.readouterr().out.splitlines()[3:]

    monkeypatch.setattr(cpu_hybrid, "home_folder", lambda _: tmp_path)
    monkeypatch.setattr(cpu_hybrid, "model_path", lambda _: Path("m.gguf"))
    monkeypatch.setattr(cpu_hybrid, "write_hybrid_model", lambda *arguments: Path("h.gguf"))
    monkeypatch.setattr(cpu_hybrid.ModelFacts, "of", lambda *arguments: FACTS)
    monkeypatch.setattr(cpu_hybrid, "find_peers", lambda *arguments: ())
    monkeypatch.setattr(cpu_hybrid, "CpuBench", FakeBench)
    return start


def test_a_shared_prefix_has_a_goal_that_is_a_ratio_to_the_peer(run):
    unique, shared = run("lfm2.q4_0", ("streams",))
    assert "unique, 8 streams, output, lfm2 q4_0" in unique and "reached" not in unique
    assert "shared, 8 streams, output, lfm2 q4_0" in shared and "≥ 6 × llama.cpp" in shared and "reached" in shared


def test_one_stream_can_be_measured_alone(run):
    prompt, decode = run("lfm2.q4_0", ("formats",))
    assert "≥ 2 × llama.cpp" in prompt and "reached" in prompt
    assert "≥ 1.3 × llama.cpp" in decode and "MISSED" in decode


def test_without_a_name_many_streams_are_measured_of_one_format_a_model(run):
    assert sum("unique" in line for line in run("", ())) == 2


def test_an_unknown_file_is_refused_with_the_known_ones():
    assert FILES == ("lfm2.q4_0", "lfm2.q8_0", "qwen35.q4_0", "qwen35.q8_0")
    with pytest.raises(SystemExit, match=r"no model 'lfm2'\. There are: lfm2\.q4_0, "):
        cpu_hybrid.main(Namespace(model="lfm2", quick=True, peers=(), only=()))
