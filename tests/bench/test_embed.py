"""`quire bench embed`: the table has our rates, and ratios to the peers that could be measured."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from quire import LLM
from quire.bench import embed
from quire.bench.engines.encoder_gguf import write_encoder_gguf
from quire.bench.engines.encoder_model import write_encoder
from quire.bench.engines.encoder_runs import sentences
from quire.bench.engines.encoder_shapes import EncoderShape
from quire.bench.engines.peer import PeerFailed, PeerUnavailable

pytestmark = pytest.mark.device
SHAPE = EncoderShape(hidden=32, ffn=64, num_layers=2, num_heads=2)


def raising(error: Exception):
    def measure(*arguments):
        raise error

    return measure


@pytest.fixture
def tables(monkeypatch, capsys, tmp_path):
    """A function from peers to the printed lines and messages; ours embed 30 and 60 sentences a second."""
    monkeypatch.setattr(embed, "write_encoder", lambda folder, shape: folder)
    rates = {None: [30.0, 15.0, 1.0, 0.0], "q8_0": [60.0, 30.0, 1.0, 0.0]}
    monkeypatch.setattr(embed, "run_in_child", lambda function, kind, *rest: ([rates[rest[-1]]], None))

    def run(peers):
        monkeypatch.setattr(embed, "MEASURE", peers)
        embed.main(Namespace(model="minilm-l6", quick=True, peers=tuple(peers)))
        captured = capsys.readouterr()
        return captured.out.splitlines(), captured.err

    return run


def test_ratios_are_to_torch_and_to_the_fastest_of_the_others(tables):
    peers = {"torch": [10.0, 5.0, 1.0, 0.0], "onnxruntime": [20.0, 5.0, 1.0, 0.0], "llama.cpp": [15.0, 10.0, 1.0, 0.0]}
    lines, _ = tables({name: lambda *_, found=found: [found] for name, found in peers.items()})
    assert lines[-1].startswith("minilm-l6, 16")
    assert all(ratio in lines[-1] for ratio in ("3.00 (3.00)", "1.50 (1.50)", "6.00 (6.00)"))


@pytest.mark.parametrize("error", [PeerUnavailable("No compiler."), PeerFailed("It ended.")])
def test_a_peer_that_cannot_be_had_is_one_line_and_no_figure(tables, error):
    lines, messages = tables({"torch": lambda *_: [[10.0, 5.0, 1.0, 0.0]], "llama.cpp": raising(error)})
    assert f"{error} Continuing without llama.cpp." in messages.splitlines()
    assert any(embed.NOTHING in line for line in lines) and "3.00 (3.00)" in lines[-1]


def test_an_unknown_shape_is_refused():
    with pytest.raises(SystemExit, match="There is no shape 'gpt'"):
        embed.main(Namespace(model="gpt", quick=True, peers=()))


def test_the_gguf_file_of_a_random_encoder_has_the_vectors_of_its_folder(tmp_path):
    folder = write_encoder(tmp_path / "bert", SHAPE)
    text = sentences(20, 1)[0]
    with LLM(str(folder)) as llm:
        expected = llm.embed([text])[0].vector
    with LLM(str(write_encoder_gguf(folder, SHAPE))) as llm:
        found = llm.embed([text])[0].vector
    assert np.allclose(found, expected, atol=1e-5)
