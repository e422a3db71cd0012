"""Peers: those that are not available or fail are reported, and the others are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.bench import cpu_bench
from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import LLAMA_CPP, OPENVINO, PeerFailed, PeerRates, PeerUnavailable
from quire.bench.engines.single_stream import SingleStream

pytestmark = pytest.mark.pure

FACTS = ModelFacts(Path("m.gguf"), "q4_1", "gguf", "q4_1", 100, (1,), decode_bytes=1, prompt_multiply_adds=1)
OURS = SingleStream((5.0,), (6.0,), (0.1,), (), {"q4_1": {"avx2": 1.0}})


class FakePeer:
    version = "1"

    def __init__(self, name: str, num_failing: int = 0) -> None:
        self.name, self.num_failing = name, num_failing

    def measure_single_stream(self, facts: ModelFacts, num_repeats: int) -> PeerRates:
        self.num_failing -= 1
        if self.num_failing >= 0:
            raise PeerFailed(f"{self.name} failed.")
        return PeerRates((1.0,) * num_repeats, (2.0,) * num_repeats)


@pytest.fixture
def find(monkeypatch):
    def unavailable(*arguments: object) -> Any:
        raise PeerUnavailable("There is no network.")

    monkeypatch.setattr(cpu_bench, "FIND", {LLAMA_CPP: lambda *_: FakePeer(LLAMA_CPP), OPENVINO: unavailable})
    monkeypatch.setattr(cpu_bench, "measure_peaks", lambda seconds: None)
    messages: list[str] = []
    return lambda *names: ([peer.name for peer in find_peers(names, Path(), FACTS, messages.append)], messages)


def test_a_peer_that_is_not_available_is_one_line(find):
    assert find("llama.cpp", "openvino") == ([LLAMA_CPP], ["There is no network. Continuing without OpenVINO."])


def test_only_the_named_peers_are_looked_for(find):
    assert find("llama.cpp") == ([LLAMA_CPP], []) and find() == ([], [])


@pytest.mark.parametrize("name", ["llama.cpp", "openvino"])
def test_peers_read_gguf_files_alone(name, tmp_path, monkeypatch):
    facts = ModelFacts(Path("m"), "bf16", "safetensors", "bf16", 100, (1,), decode_bytes=1, prompt_multiply_adds=1)
    messages: list[str] = []
    assert find_peers([name], tmp_path, facts, messages.append) == ()
    assert "GGUF" in messages[0] and not list(tmp_path.iterdir())


def test_turns_are_joined_and_a_peer_that_fails_in_one_keeps_the_other(monkeypatch):
    monkeypatch.setattr(cpu_bench, "run_in_child", lambda *arguments: (OURS, None))
    messages: list[str] = []
    peers: Any = (FakePeer("one", num_failing=1), FakePeer("two"), FakePeer("three", num_failing=2))
    result = CpuBench(peers, messages.append, num_repeats=2).measure_stream(FACTS, num_turns=2)
    assert result.ours.prompt_rates == (5.0, 5.0) and result.ours.kernels == OURS.kernels
    assert {name: len(rates.prompt) for name, rates in result.peers.items()} == {"one": 2, "two": 4}
    assert messages.count("one failed.") == 1 and messages.count("three failed.") == 2
