"""The benchmark of encoders, with a small shape on the CPU: only that it works."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from quire.bench import embed_gpu
from quire.bench.engines.encoder_shapes import SHAPES, EncoderShape

pytestmark = pytest.mark.e2e


def test_it_prints_tokens_a_second_of_steps_and_of_the_engine(monkeypatch, capsys):
    monkeypatch.setitem(SHAPES, "minilm-l6", EncoderShape(32, 64, 1, 2))
    rest = ["--shape", "minilm-l6", "--length", "8", "--step-tokens", "32", "--seconds", "0.01", "--device", "cpu"]
    embed_gpu.main(Namespace(rest=[*rest, "--engine"]))
    model, step, engine = map(json.loads, capsys.readouterr().out.splitlines())
    assert model["weights"] == 4 * 32 * 32 + 2 * 32 * 64
    assert step["path"] == "step" and engine["path"] == "engine"
    assert step["tokens_per_s"] > 0 and engine["tokens_per_s"] > 0
