"""Random models can be opened and drawn as other files can."""

import numpy as np
import pytest

from quire.bench.engines import small_model
from quire.bench.engines.small_model import write_small_model
from quire.models.draw import draw
from quire.models.errors import UnsupportedModel
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.e2e


def test_models_of_many_architectures_can_be_drawn(model_file, tmp_path, monkeypatch):
    monkeypatch.setitem(small_model.VALUES, "block_count", 2)
    for name in (
        "arcee",
        "command-r",
        "gemma2",
        "gpt2",
        "granite",
        "llama",
        "nemotron",
        "olmo2",
        "phi3",
        "qwen3",
        "qwen3moe",
    ):
        checkpoint = open_checkpoint(write_small_model(name, model_file, tmp_path))
        model = draw(checkpoint)
        assert (model.config.num_layers, model.config.hidden, model.config.vocab_size) == (2, 576, 49152)
    weights = checkpoint.tensors["blk.0.attn_output.weight"].dequantize()
    assert abs(weights.mean()) < 1e-3 and 0.01 < weights.std() < 0.05 and np.isfinite(weights).all()


@pytest.mark.parametrize(
    "name, tensor", [("phi3", "output.weight"), ("starcoder2", "blk.0.attn_output.bias"), ("gptneox", "output.weight")]
)
def test_a_file_has_the_tensors_that_llama_cpp_requires(name, tensor, model_file, tmp_path, monkeypatch):
    monkeypatch.setitem(small_model.VALUES, "block_count", 1)
    checkpoint = open_checkpoint(write_small_model(name, model_file, tmp_path))
    assert tensor in checkpoint.tensors and draw(checkpoint).config.num_layers == 1
    assert name not in checkpoint.metadata["general.name"]  # it would require the special tokens of the family


def test_an_unknown_architecture_is_refused_with_a_list(model_file, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"'bloom'.*gemma2.*llama"):
        write_small_model("bloom", model_file, tmp_path)
