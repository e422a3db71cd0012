"""Figures of a model with experts: medians of all turns, and ratios to the peer's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench.cpu_experts import expert_figures
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import LLAMA_CPP, PeerRates
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_results import FormatResult, StreamsComparison
from quire.bench.load.stream_loads import StreamSizes

pytestmark = pytest.mark.pure

FACTS = ModelFacts(Path("m"), "experts q4_0", "gguf", "q4_0", 100, (1,), decode_bytes=1000, prompt_multiply_adds=2000)
OURS = SingleStream((300.0, 500.0, 900.0), (70.0, 80.0, 60.0), (0.0,) * 3, ())


def streams(rate: float) -> Any:
    return SimpleNamespace(loads=SimpleNamespace(unique=SimpleNamespace(output_per_second=rate)))


def test_goals_are_ratios_to_the_peer():
    result = FormatResult(FACTS, OURS, {LLAMA_CPP: PeerRates((200.0,), (50.0,))})
    comparison = StreamsComparison(StreamSizes(), streams(90.0), {LLAMA_CPP: streams(40.0)})
    prompt, decode, many = expert_figures(result, comparison)
    assert (prompt.value, prompt.peers, prompt.verdict) == (500.0, {LLAMA_CPP: 200.0}, "reached")
    assert (decode.value, decode.peers, decode.verdict) == (70.0, {LLAMA_CPP: 50.0}, "reached")
    assert (many.value, many.peers, many.verdict) == (90.0, {LLAMA_CPP: 40.0}, "MISSED")


def test_without_a_peer_nothing_is_compared():
    figures = list(expert_figures(FormatResult(FACTS, OURS), StreamsComparison(StreamSizes(8), streams(90.0))))
    assert [figure.verdict for figure in figures] == ["not compared"] * 3
