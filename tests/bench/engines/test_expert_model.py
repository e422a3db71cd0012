"""The model with experts can be opened and drawn as other files can; of its experts, a token uses some."""

import pytest

from quire.bench.engines import expert_model
from quire.bench.engines.model_facts import ModelFacts
from quire.weights.checkpoint import open_checkpoint


@pytest.mark.e2e
def test_a_smaller_model_of_its_kind_can_be_read(model_file, tmp_path, monkeypatch):
    monkeypatch.setattr(expert_model, "NUM_LAYERS", 1)
    monkeypatch.setitem(expert_model.SHAPE, "block_count", 1)
    into = expert_model.write_expert_model(model_file, tmp_path / "experts.gguf")
    facts, dim, ffn = ModelFacts.of(into, "experts"), expert_model.DIM, expert_model.EXPERT_DIM
    attention = dim * dim * 2 + dim * 256 * 2
    used = 3 * dim * ffn * expert_model.TOP
    router = dim * expert_model.NUM_EXPERTS
    assert (facts.label, facts.prompt_multiply_adds) == ("experts q4_0", attention + used + router)
    assert facts.decode_bytes == (attention + used + 49152 * dim) * 18 // 32 + 4 * router
    tensors = open_checkpoint(into).tensors
    assert tensors["blk.0.ffn_gate_inp.weight"].format == "f32"
    weights = tensors["blk.0.ffn_down_exps.weight"].dequantize()
    assert weights.shape == (expert_model.NUM_EXPERTS, dim, ffn)
    assert abs(weights.mean()) < 1e-4 and 0.01 < weights.std() < 0.05  # tokens are not alike: they use other experts
