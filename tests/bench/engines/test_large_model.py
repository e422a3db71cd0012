"""The large model can be opened and drawn as other files can."""

import numpy as np
import pytest

from quire.bench.engines import large_model
from quire.bench.engines.model_facts import ModelFacts
from quire.weights.checkpoint import open_checkpoint


@pytest.mark.e2e
def test_a_smaller_model_of_its_kind_can_be_read(model_file, tmp_path, monkeypatch):
    monkeypatch.setattr(large_model, "NUM_LAYERS", 1)
    monkeypatch.setitem(large_model.SHAPE, "llama.block_count", 1)
    into = tmp_path / "made" / "large.gguf"
    assert large_model.write_large_model(model_file, into) == into
    facts = ModelFacts.of(into, "1B")
    assert (facts.label, facts.format, facts.vocab_size) == ("1B q4_k", "q4_k", 49152)
    assert facts.prompt_multiply_adds == sum(rows * columns for rows, columns in large_model.MATRICES.values())
    weights = open_checkpoint(into).tensors["blk.0.attn_k.weight"].dequantize()
    assert weights.shape == (512, 2048) and abs(weights.mean()) < 1e-3 and 0.01 < weights.std() < 0.05
    assert np.isfinite(weights).all()
    before = into.stat().st_mtime_ns
    assert large_model.write_large_model(model_file, into).stat().st_mtime_ns == before
