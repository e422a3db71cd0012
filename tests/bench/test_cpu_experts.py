"""Figures of a model with experts: medians of all turns, and ratios to the peer's."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.bench.cpu_experts import expert_figures
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_results import FormatResult, PeerRates

pytestmark = pytest.mark.pure

FACTS = ModelFacts(Path("m"), "experts q4_0", "gguf", "q4_0", 100, (1,), decode_bytes=1000, prompt_multiply_adds=2000)


def streams(rate: float) -> SimpleNamespace:
    return SimpleNamespace(loads=SimpleNamespace(unique=SimpleNamespace(output_per_second=rate)))


def turn(prompt: float, decode: float, peer: PeerRates | None) -> FormatResult:
    return FormatResult(FACTS, SingleStream((prompt,), (decode,), (0.0,), ()), peer)


def test_goals_are_ratios_to_the_peer():
    peer = PeerRates((200.0,), (50.0,))
    turns = [turn(300.0, 70.0, peer), turn(500.0, 80.0, peer), turn(900.0, 60.0, None)]
    prompt, decode, many = expert_figures(turns, (streams(90.0), streams(40.0)), 32)
    assert (prompt.value, prompt.peer, prompt.verdict) == (500.0, 200.0, "reached")
    assert (decode.value, decode.peer, decode.verdict) == (70.0, 50.0, "reached")
    assert (many.value, many.peer, many.verdict) == (90.0, 40.0, "MISSED")


def test_without_a_peer_nothing_is_compared():
    figures = list(expert_figures([turn(300.0, 70.0, None)], (streams(90.0), None), 8))
    assert [figure.verdict for figure in figures] == ["not compared"] * 3
