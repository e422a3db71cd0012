"""Figures of architectures: rates relative to the bytes and the products of a token, over Llama's."""

from pathlib import Path

import pytest

from quire.bench.architectures import architecture_figures
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.peer import LLAMA_CPP, PeerRates
from quire.bench.engines.single_stream import SingleStream
from quire.bench.figures.cpu_results import FormatResult

pytestmark = pytest.mark.pure


def result(label: str, size: int, prompt: float, decode: float, peer: PeerRates | None = None) -> FormatResult:
    facts = ModelFacts(Path(label), label, "gguf", "q4_1", 100, (1,), decode_bytes=size, prompt_multiply_adds=2 * size)
    return FormatResult(
        facts,
        SingleStream((prompt, prompt / 2), (decode, decode / 4), (0.0, 0.0), ()),
        {LLAMA_CPP: peer} if peer else {},
    )


def test_the_fastest_repeats_are_compared_with_the_first_model():
    peer = PeerRates((300.0, 200.0), (30.0, 40.0))
    first = [result("llama q4_1", 1000, 800.0, 100.0), result("gpt2 q4_1", 500, 1000.0, 150.0, peer)]
    second = [result("llama q4_1", 1000, 1000.0, 90.0), result("gpt2 q4_1", 500, 1900.0, 120.0)]
    figures = {figure.name: figure for figure in architecture_figures([first, second])}
    assert (
        figures["decode, one stream, llama q4_1"].value == 100
        and figures["prompt of 512 tokens, llama q4_1"].value == 1000
    )
    assert figures["decode, one stream, gpt2 q4_1"].peers == {LLAMA_CPP: 40}
    assert figures["prompt of 512 tokens, gpt2 q4_1"].peers == {LLAMA_CPP: 300}
    decode, prompt = (
        figures[f"{kind} over Llama's"] for kind in ("decode, gpt2 q4_1: read rate", "prompt, gpt2 q4_1: product rate")
    )
    assert (decode.value, decode.verdict) == (0.75, "MISSED") and (prompt.value, prompt.verdict) == (0.95, "reached")
    assert not any("Llama's" in name and "llama" in name for name in figures)
