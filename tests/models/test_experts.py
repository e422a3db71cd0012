"""Files of models with experts: one tensor for each expert or stacks, quantized ones, random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor, StackedTensor
from quire.models.draw import draw
from quire.models.errors import BadCheckpoint
from quire.models.moe import MoeConfig
from quire.models.registry import all_architectures
from quire.weights.checkpoint import open_checkpoint
from tests.models.toys import CASES, FIRST_CASES, MemoryCheckpoint, as_tensors, make_toy

pytestmark = pytest.mark.pure

WITH_EXPERTS = {arch.name for arch in all_architectures() if issubclass(arch.config, MoeConfig)}
TOYS = [name for name in FIRST_CASES if CASES[name].kind in WITH_EXPERTS]


def published(case: str, folder) -> MemoryCheckpoint:
    """The toy as transformers writes it: as such models are published."""
    make_toy(case).torch_model.save_pretrained(folder)
    found = open_checkpoint(folder)
    return MemoryCheckpoint("safetensors", make_toy(case).checkpoint.metadata, found.tensors)


@pytest.mark.parametrize("case", TOYS)
def test_a_file_that_transformers_writes_has_the_weights_of_the_model(case, tmp_path):
    saved, stacked = draw(published(case, tmp_path)).weights, draw(make_toy(case).checkpoint).weights
    assert saved.keys() == stacked.keys()
    for name, weight in stacked.items():
        assert np.array_equal(saved[name].float32(), weight.float32()), name


def test_experts_of_published_files_are_stored_apart_and_one_is_read_alone(tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in checkpoint.tensors
    up = draw(checkpoint).weights["layers.0.experts.up"]
    assert isinstance(up.source, StackedTensor) and up.shape == (8, 40, 48)
    assert np.shares_memory(up.matrix(3).raw(), checkpoint.tensors["model.layers.0.mlp.experts.3.up_proj.weight"].data)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_missing_expert_is_named(number, tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    gone = f"model.layers.1.mlp.experts.{number}.down_proj.weight"
    rest = {name: tensor for name, tensor in checkpoint.tensors.items() if name != gone}
    named = r"experts\.down_proj\.weight is \[7, 48, 40\]" if number == 7 else gone.replace(".", r"\.")
    with pytest.raises(BadCheckpoint, match=named):
        draw(replace(checkpoint, tensors=rest))


def test_experts_of_different_shapes_are_refused(tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    wrong = as_tensors({name: np.zeros((48, 39), np.float32)})
    with pytest.raises(BadCheckpoint, match=r"experts\.2\.down_proj\.weight is f32 \[48, 39\].*alike"):
        draw(replace(checkpoint, tensors={**checkpoint.tensors, **wrong}))


def test_a_stack_of_another_shape_is_refused():
    checkpoint = make_toy("qwen3_moe").checkpoint
    name = "model.layers.1.mlp.experts.gate_up_proj"
    for shape in ((8, 79, 48), (8, 81, 48), (7, 80, 48), (8, 80, 47)):
        tensor = ComputedTensor(name, np.zeros(shape, np.float32))
        with pytest.raises(BadCheckpoint, match=r"gate_up_proj is \[.*must be \[8, 80, 48\]"):
            draw(replace(checkpoint, tensors={**checkpoint.tensors, name: tensor}))
