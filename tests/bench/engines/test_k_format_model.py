"""Models of K formats can be opened as other files can."""

import numpy as np
import pytest

from quire.bench.engines.k_format_model import FORMATS, SHAPE, write_k_model
from quire.bench.engines.large_model import LlamaShape
from quire.bench.engines.model_facts import ModelFacts
from quire.weights.checkpoint import open_checkpoint


@pytest.mark.e2e
@pytest.mark.parametrize("format", FORMATS)
def test_a_smaller_model_of_its_kind_can_be_read(format, model_file, tmp_path):
    path = write_k_model(format, model_file, tmp_path, LlamaShape(1, 256, 512, 4, 2))
    assert ModelFacts.of(path, "138M").label == f"138M {format}"
    weights = open_checkpoint(path).tensors["blk.0.attn_k.weight"].dequantize()
    assert weights.shape == (128, 256) and np.isfinite(weights).all() and 0.01 < weights.std() < 0.05


@pytest.mark.pure
def test_it_has_the_size_that_its_label_says():
    sizes = [np.prod(shape) for shape in SHAPE.shapes(49152).values()]
    assert sum(sizes) == pytest.approx(138e6, rel=0.01)
