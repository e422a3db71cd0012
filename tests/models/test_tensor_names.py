"""Tensors that files have in another form: without a prefix, under another name, one for each head, computed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor, StackedTensor
from quire.models.alibi import alibi_slopes
from quire.models.draw import draw
from quire.models.errors import BadCheckpoint
from tests.models.toys import MemoryCheckpoint, make_toy

pytestmark = pytest.mark.pure


def with_names(case: str, **replaced: str) -> MemoryCheckpoint:
    """The toy of a case, in whose names of tensors some beginnings are others."""
    checkpoint = make_toy(case).checkpoint
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        found = next((each for each in replaced if name.startswith(each.replace("_", "."))), None)
        new = name if found is None else replaced[found] + name.removeprefix(found.replace("_", "."))
        tensors[new] = ComputedTensor(new, tensor.array)
    return replace(checkpoint, tensors=tensors)


def same_weights(one: MemoryCheckpoint, other: MemoryCheckpoint) -> bool:
    left, right = draw(one).weights, draw(other).weights
    return left.keys() == right.keys() and all(
        np.array_equal(left[name].float32(), right[name].float32()) for name in left
    )


@pytest.mark.parametrize("case, prefix", [("gpt2", "transformer_"), ("opt", "model_"), ("llama", "model_")])
def test_a_file_of_the_model_without_its_head_has_no_prefix(case, prefix):
    bare = with_names(case, **{prefix: ""})
    assert not any(name.startswith(prefix.replace("_", ".")) for name in bare.tensors)
    assert same_weights(bare, make_toy(case).checkpoint)


def test_the_head_of_gpt_neox_has_two_names():
    checkpoint = make_toy("gpt_neox").checkpoint
    tensors = dict(checkpoint.tensors)
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    assert same_weights(replace(checkpoint, tensors=tensors), checkpoint)


def test_a_missing_head_of_the_norms_of_heads_is_named():
    checkpoint = make_toy("stablelm-parallel").checkpoint
    name = "model.layers.1.self_attn.q_layernorm.norms.3.weight"
    tensors = {each: tensor for each, tensor in checkpoint.tensors.items() if each != name}
    with pytest.raises(BadCheckpoint, match=re.escape(name)):
        draw(replace(checkpoint, tensors=tensors))


def test_stacked_tensors_are_one_with_an_axis_in_front():
    parts = [ComputedTensor(str(i), np.full((2, 3), i, np.float32)) for i in range(4)]
    stacked = StackedTensor("all", tuple(parts))
    assert (stacked.shape, stacked.format, stacked.num_bytes) == ((4, 2, 3), "f32", 96)
    assert np.array_equal(stacked.dequantize(), np.stack([part.array for part in parts]))
    assert np.array_equal(stacked.data.view(np.float32).reshape(4, 2, 3), stacked.dequantize())


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 16, 32, 71, 112])
def test_slopes_are_those_of_transformers(num_heads):
    torch = pytest.importorskip("torch")
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    expected = falcon.build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), num_heads, torch.float32)[:, 0, 1]
    np.testing.assert_array_equal(alibi_slopes(num_heads), expected.numpy())


def test_the_numbers_of_xielu_are_read_from_every_layer():
    model = draw(make_toy("apertus").checkpoint)
    alpha_p, alpha_n, beta, _ = model.config.xielu[1]
    assert len(model.config.xielu) == 2 and model.config.xielu[0] != model.config.xielu[1]
    positive, negative = (model.weights[f"layers.1.mlp.{name}"].float32().item() for name in ("positive", "negative"))
    assert positive == pytest.approx(np.log1p(np.exp(alpha_p)))
    assert negative == pytest.approx(beta + np.log1p(np.exp(alpha_n)))
