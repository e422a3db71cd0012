"""A random model of every architecture that GGUF files can have can be opened and drawn."""

import numpy as np
import pytest

from quire.bench.engines import small_model
from quire.bench.engines.small_model import write_small_model
from quire.models.draw import draw
from quire.models.errors import UnsupportedModel
from quire.models.registry import all_architectures
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.e2e


def test_a_model_of_each_architecture_can_be_drawn(model_file, tmp_path, monkeypatch):
    monkeypatch.setitem(small_model.VALUES, "block_count", 2)
    for arch in all_architectures():
        if arch.gguf is not None:
            checkpoint = open_checkpoint(write_small_model(arch.gguf, model_file, tmp_path))
            model = draw(checkpoint)
            assert (model.architecture, model.config.num_layers, model.config.hidden) == (arch.name, 2, 576)
    weights = checkpoint.tensors["blk.0.attn_output.weight"].dequantize()
    assert abs(weights.mean()) < 1e-3 and 0.01 < weights.std() < 0.05 and np.isfinite(weights).all()


def test_an_unknown_architecture_is_refused_with_a_list(model_file, tmp_path):
    with pytest.raises(UnsupportedModel, match=r"'bert'.*gemma2.*llama"):
        write_small_model("bert", model_file, tmp_path)
