"""The models with states can be opened, drawn and run as other files can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.bench.engines.hybrid_model import FORMATS, HybridShape, lfm2_shape, qwen35_shape, write_hybrid_model
from quire.bench.engines.model_facts import ModelFacts
from quire.graph.interpret import Interpreter
from quire.models.draw import draw
from quire.ops.batch import Batch, RowPart
from quire.weights.checkpoint import open_checkpoint

VOCAB = 49152  # of the tokenizer
SMALL = {
    "lfm2": lfm2_shape(dim=64, ffn=96, heads=(4, 2), attention=".*."),
    "qwen35": qwen35_shape(dim=64, ffn=96, num_layers=4, heads=(2, 1, 128), delta=(2, 32)),
}
MULTIPLY_ADDS = {  # of the layers, without kernels of convolutions
    "lfm2": 2 * 4 * 64 * 64 + 3 * 64 * 64 + 3 * 3 * 64 * 96,
    "qwen35": 3 * (4 * 64 + 4 + 64) * 64 + (2 * 256 + 2 * 128 + 256) * 64 + 4 * 3 * 64 * 96,
}
KERNELS = {"lfm2": 2 * 64 * 3, "qwen35": 3 * 3 * 64 * 4}


@pytest.mark.e2e
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("format", FORMATS)
def test_a_small_model_of_each_kind_can_be_read_and_run(name: str, format: str, model_file: Path, tmp_path: Path):
    into = write_hybrid_model(SMALL[name], format, model_file, tmp_path / "hybrid.gguf")
    facts = ModelFacts.of(into, name)
    assert facts.label == f"{name} {format}"
    assert facts.prompt_multiply_adds == MULTIPLY_ADDS[name] + KERNELS[name]
    model = draw(open_checkpoint(into))
    tokens = list(range(500, 540))
    logits = Interpreter(model.graph, model.weights, 4).run(Batch.of([RowPart(tokens, 0, [0, 1, 2], 4)], 16))
    assert logits.shape == (4, VOCAB) and np.isfinite(logits).all()
    assert len(set(logits.argmax(1).tolist())) > 1, "tokens are alike"


@pytest.mark.pure
@pytest.mark.parametrize(
    "shape, attention, num_weights",
    [(lfm2_shape(), [2, 5, 8, 10, 12, 14], 287_340_544), (qwen35_shape(), [3, 7, 11, 15, 19, 23], 498_057_216)],
    ids=["lfm2", "qwen35"],
)
def test_the_whole_models_have_the_layers_of_the_published_ones(
    shape: HybridShape, attention: list[int], num_weights: int
):
    assert [layer for layer, attends in enumerate(shape.has_attention) if attends] == attention
    sizes = [rows * columns for rows, columns in (each for each in shape.shapes(0).values() if len(each) == 2)]
    assert sum(sizes) == num_weights
