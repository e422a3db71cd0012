"""How many weights the models of the benchmarks multiply with, and how many experts their steps read."""

from __future__ import annotations

import pytest

from quire.bench.engines.random_models import SHAPES, MultipliedWeights, multiplied_weights, write_config

pytestmark = pytest.mark.pure


def test_uniform_routing_touches_distinct_experts():
    weights = MultipliedWeights(shared=100, of_experts=1280, num_experts=128, top=8)
    assert weights.distinct_experts(1) == pytest.approx(8)
    assert weights.distinct_experts(10) == pytest.approx(128 * (1 - 0.9375**10))
    assert weights.read(1) == pytest.approx(weights.of_a_token) == pytest.approx(180)
    assert weights.read(1e6) == pytest.approx(1380)


def test_a_dense_model_reads_the_same_weights_at_every_step(tmp_path):
    write_config(tmp_path, "tiny")
    weights = multiplied_weights(tmp_path)
    assert weights.read(1) == weights.read(100) == weights.of_a_token


SIZES = [
    ("qwen3-30b-a3b", 30.2e9, 3.0e9, 2.0),
    ("deepseek-v2-lite", 15.5e9, 2.5e9, 2.0),
    ("gpt-oss-20b", 20.3e9, 3.6e9, 17 / 32),
]


@pytest.mark.parametrize("shape, total, active, weight_bytes", SIZES)
def test_models_with_experts_have_the_published_sizes(shape, total, active, weight_bytes, tmp_path):
    assert shape in SHAPES
    write_config(tmp_path, shape)
    weights = multiplied_weights(tmp_path)
    assert weights.shared + weights.of_experts == pytest.approx(total, rel=0.01)
    assert weights.of_a_token == pytest.approx(active, rel=0.02)
    assert weights.expert_bytes == weight_bytes * weights.of_experts


def test_a_hybrid_model_has_the_published_size(tmp_path):
    """Qwen3.5-9B: 9.0 billion weights with the embeddings, which are not multiplied with."""
    write_config(tmp_path, "qwen3.5-9b")
    weights = multiplied_weights(tmp_path)
    assert weights.of_experts == 0 and weights.shared + 248320 * 4096 == pytest.approx(9.0e9, rel=0.02)
