"""A model in another format: the same weights within its precision, and a table that keeps more bits."""

from __future__ import annotations

import numpy as np
import pytest

from quire.bench.engines.gguf_writer import GgufTensor, write_gguf
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.requantized_model import write_requantized
from quire.quant.registry import all_formats
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.pure

ROWS, COLUMNS = 4, 64
METADATA = {"general.file_type": 3, "list.of.floats": [0.5, 1.5], "list.of.words": ["a", "b"]}


@pytest.fixture
def facts(tmp_path) -> ModelFacts:
    rng = np.random.default_rng(0)
    formats = {"blk.0.a.weight": "q4_1", "token_embd.weight": "q8_0", "norm.weight": "f32"}
    shapes = {name: (COLUMNS,) if name == "norm.weight" else (ROWS, COLUMNS) for name in formats}
    raw, tensors = {}, {}
    for name, format in formats.items():
        kind = all_formats()[format]
        weights = rng.normal(0, 1, shapes[name]).astype(np.float32)
        raw[name] = kind.quantize(weights.reshape(-1, kind.block_weights))
        tensors[name] = GgufTensor(shapes[name], kind.gguf_type or 0, raw[name].nbytes)
    path = write_gguf(tmp_path / "m.gguf", METADATA, tensors, lambda name: [raw[name]])
    return ModelFacts(path, "q4_1", "gguf", "q4_1", 100, (1,), decode_bytes=1, prompt_multiply_adds=1)


@pytest.mark.parametrize(
    "format, table, error", [("q4_0", "q8_0", 0.3), ("q8_0", "q8_0", 0.02), ("bf16", "bf16", 0.02)]
)
def test_matrices_are_converted(facts, tmp_path, format, table, error):
    into = write_requantized(facts, format, tmp_path / "formats")
    old, new = open_checkpoint(facts.path), open_checkpoint(into)
    found = {name: tensor.format for name, tensor in new.tensors.items()}
    assert found == {"blk.0.a.weight": format, "token_embd.weight": table, "norm.weight": "f32"}
    for name, tensor in new.tensors.items():
        assert np.abs(tensor.dequantize() - old.tensors[name].dequantize()).max() < error
    assert list(new.metadata["list.of.words"]) == ["a", "b"] and list(new.metadata["list.of.floats"]) == [0.5, 1.5]
    assert new.metadata["general.file_type"] != 3


def test_a_file_that_exists_is_kept(facts, tmp_path):
    into = write_requantized(facts, "q4_0", tmp_path)
    into.write_bytes(b"kept")
    assert write_requantized(facts, "q4_0", tmp_path).read_bytes() == b"kept"
