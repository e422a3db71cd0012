"""The large model is a file like others: our reader opens it, and the model can be drawn."""

import numpy as np
import pytest

from quire.bench import large
from quire.bench.facts import ModelFacts
from quire.weights.checkpoint import open_checkpoint


@pytest.mark.e2e
def test_a_smaller_one_of_its_kind_can_be_read(model_file, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "NUM_LAYERS", 1)
    monkeypatch.setitem(large.SHAPE, "llama.block_count", 1)
    into = tmp_path / "made" / "large.gguf"
    assert large.write_large(model_file, into) == into
    facts = ModelFacts.of(into, "1B")
    assert (facts.label, facts.format, facts.vocab_size) == ("1B q4_k", "q4_k", 49152)
    assert facts.prompt_multiply_adds == sum(rows * columns for rows, columns in large.MATRICES.values())
    weights = open_checkpoint(into).tensors["blk.0.attn_k.weight"].dequantize()
    assert weights.shape == (512, 2048) and abs(weights.mean()) < 1e-3 and 0.01 < weights.std() < 0.05
    assert np.isfinite(weights).all()
    before = into.stat().st_mtime_ns
    assert large.write_large(model_file, into).stat().st_mtime_ns == before
