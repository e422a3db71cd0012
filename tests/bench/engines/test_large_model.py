"""The large models can be opened and drawn as other files can."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quire.bench.engines.large_model import SHAPES, LlamaShape, delete_large_models, large_models, write_large_model
from quire.bench.engines.model_facts import ModelFacts
from quire.weights.checkpoint import open_checkpoint

SMALL = LlamaShape(num_layers=8, dim=256, ffn=512, num_heads=4, num_kv_heads=2)


@pytest.mark.e2e
@pytest.mark.parametrize("format, most", [("Q4_K_M", "q6_k"), ("Q8_0", "q8_0"), ("BF16", "bf16")])
def test_a_smaller_model_of_each_format_can_be_read(format: str, most: str, model_file: Path, tmp_path: Path):
    into = write_large_model(SMALL, f"1B {format}", model_file, tmp_path / "made")
    facts = ModelFacts.of(into)
    assert (facts.format, facts.vocab_size) == (most, 49152)  # most weights are those of the table
    multiply_adds = sum(rows * columns for rows, columns in SMALL.matrices.values())
    assert facts.prompt_multiply_adds == SMALL.num_layers * multiply_adds
    for name in ("blk.0.attn_k.weight", "blk.0.ffn_down.weight"):
        weights = open_checkpoint(into).tensors[name].dequantize()
        assert abs(weights.mean()) < 1e-3 and 0.01 < weights.std() < 0.05
        assert np.isfinite(weights).all()
    before = into.stat().st_mtime_ns
    assert write_large_model(SMALL, f"1B {format}", model_file, tmp_path / "made").stat().st_mtime_ns == before
    assert delete_large_models(tmp_path / "made") > 0 and not into.exists()


@pytest.mark.e2e
def test_q4_k_m_has_more_bits_in_half_of_the_values_and_down_projections(model_file: Path, tmp_path: Path):
    tensors = open_checkpoint(write_large_model(SMALL, "1B Q4_K_M", model_file, tmp_path)).tensors
    formats = Counter(tensor.format for tensor in tensors.values())
    assert formats == {"f32": 17, "q6_k": 1 + 2 * 4, "q4_k": 7 * 8 - 2 * 4}
    assert tensors["blk.0.ffn_down.weight"].format == "q6_k" and tensors["blk.1.ffn_down.weight"].format == "q4_k"


@pytest.mark.pure
def test_all_sizes_and_formats_are_there_with_the_sizes_of_published_models():
    labels = [label for label, _ in large_models()]
    assert labels == [f"{size} {format}" for size in ("1B", "3B") for format in ("Q4_K_M", "Q8_0", "BF16")]
    sizes = {
        name: shape.num_layers * sum(rows * columns for rows, columns in shape.matrices.values())
        for name, shape in SHAPES.items()
    }
    assert sizes == {"1B": 973_078_528, "3B": 2_818_572_288}
