"""Short convolutions and the delta rule: sizes of published models, layouts of files, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.models.draw import DrawnModel, draw
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.ops.cache import Latent, PagedKV, State
from quire.ops.registry import relative_error
from tests.models.published_delta import PUBLISHED
from tests.models.toys import MemoryCheckpoint, Session, as_tensors, make_toy, some_tokens

pytestmark = pytest.mark.pure

# In billions, without layers for drafting and parts for images.
PARAMETERS = {
    "LFM2 350M": 0.354,
    "LFM2 1.2B": 1.17,
    "LFM2 8B A1B": 8.34,
    "Qwen3-Next 80B A3B": 79.7,
    "Qwen3.5 0.8B": 0.752,
    "Qwen3.5 9B": 8.95,
    "Qwen3.5 27B": 26.9,
    "Qwen3.5 35B A3B": 34.7,
    "Kimi-Linear 48B A3B": 49.1,
}


def drawn(name: str) -> DrawnModel:
    """A published model with random weights, of which none is made."""
    return draw(MemoryCheckpoint("dummy", PUBLISHED[name], {}))


def error_of(checkpoint: MemoryCheckpoint, case: str, count: int = 30) -> float:
    """How far the logits are from those of transformers."""
    tokens = some_tokens(count)
    return relative_error(Session(draw(checkpoint)).step({"a": tokens})["a"], make_toy(case).expected_logits(tokens))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_file_gives_a_model_of_the_published_size(name):
    weights = {id(weight): weight for weight in drawn(name).weights.values()}.values()
    assert sum(np.prod(each.shape, dtype=float) for each in weights) / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


def test_a_model_has_a_state_in_every_layer_without_attention():
    """The states of Qwen3.5 0.8B are 19 MB, and those of 9B are 50 MB."""
    sizes = {}
    for name in ("Qwen3.5 0.8B", "Qwen3.5 9B"):
        caches = drawn(name).graph.caches
        sizes[name] = sum(each.num_bytes for each in caches if isinstance(each, State)) / 1e6
        assert len([each for each in caches if isinstance(each, PagedKV)]) == len(caches) // 7
    assert sizes == {"Qwen3.5 0.8B": pytest.approx(20.2, abs=0.1), "Qwen3.5 9B": pytest.approx(52.7, abs=0.1)}
    kinds = [type(each) for each in drawn("Kimi-Linear 48B A3B").graph.caches]
    assert (kinds.count(Latent), kinds.count(State)) == (7, 4 * 20)


def test_the_first_gguf_files_of_qwen3_next_have_the_matrix_of_safetensors():
    whole, checkpoint = make_toy("qwen3_next").checkpoint.tensors, make_toy("qwen3_next").as_gguf()
    tensors = {name: each for name, each in checkpoint.tensors.items() if name not in
               ("blk.0.attn_qkv.weight", "blk.0.attn_gate.weight")}  # fmt: skip
    tensors |= as_tensors({"blk.0.ssm_in.weight": whole["model.layers.0.linear_attn.in_proj_qkvz.weight"].array})
    assert error_of(replace(checkpoint, tensors=tensors), "qwen3_next") < 1e-4


def test_layers_of_gguf_files_for_drafting_are_left_out():
    checkpoint = make_toy("qwen3_next").as_gguf()
    keys = {"qwen3next.block_count": 3, "qwen3next.nextn_predict_layers": 1}
    extra = {"blk.2.attn_norm.weight": np.ones(48, np.float32), "blk.2.nextn.eh_proj.weight": np.ones((48, 96))}
    tensors = {**checkpoint.tensors, **as_tensors(extra)}
    more = replace(checkpoint, metadata={**checkpoint.metadata, **keys}, tensors=tensors)
    assert error_of(more, "qwen3_next") < 1e-4


def test_published_files_of_kimi_linear_have_another_name_for_dense_blocks():
    checkpoint = make_toy("kimi_linear").checkpoint
    tensors = {
        name.replace("layers.0.block_sparse_moe", "layers.0.mlp"): each for name, each in checkpoint.tensors.items()
    }
    assert tensors.keys() != checkpoint.tensors.keys()
    assert error_of(replace(checkpoint, tensors=tensors), "kimi_linear") < 1e-4


def test_quantized_gguf_files_of_kimi_linear_have_fewer_axes():
    checkpoint = make_toy("kimi_linear").as_gguf()
    arrays = {name: each.array for name, each in checkpoint.tensors.items()}
    fewer = {name: array[0] for name, array in arrays.items() if "conv1d" in name}
    fewer |= {name: array[0, 0] for name, array in arrays.items() if name.endswith("ssm_a")}
    assert all(array.shape != arrays[name].shape for name, array in fewer.items()) and len(fewer) == 4
    assert error_of(replace(checkpoint, tensors=as_tensors(arrays | fewer)), "kimi_linear") < 1e-4


def test_heads_of_a_gguf_file_in_the_order_of_the_graph_are_not_copied():
    """Where there are as many heads of values as of keys, every tensor is used as it is stored."""
    weights = draw(make_toy("qwen3_5-biased").as_gguf()).weights
    assert all(weights[f"layers.0.delta.{word}"].row_order is None for word in ("qkv", "kernel"))
    assert draw(make_toy("qwen3_5").as_gguf()).weights["layers.0.delta.qkv"].row_order is not None


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads that cannot be shared": ("qwen3_5", {"linear_num_value_heads": 3}, "linear_num_value_heads"),
    "no gate of attention": ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate = False"),
    "another activation": ("qwen3_5", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "another kind of layer": ("qwen3_5", {"layer_types": ["conv"] * 3}, "'conv'"),
    "dense layers": ("qwen3_5_moe", {"mlp_only_layers": [1]}, "mlp_only_layers = "),
    "weights that are not renormalized": ("qwen3_5_moe", {"norm_topk_prob": False}, "norm_topk_prob = False"),
    "two widths": ("lfm2", {"block_ff_dim": 7}, "block_ff_dim = 7"),
    "linear attention": ("lfm2", {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
    "no kinds of layers": ("lfm2_moe", {"layer_types": None}, "layer_types"),
    "rope": ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope = False"),
    "softmax": ("kimi_linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func = 'softmax'"),
    "a bound of the gate": (
        "kimi_linear",
        {"linear_attn_config": {"gate_lower_bound": -5.0}},
        r"linear_attn_config\.gate_lower_bound = -5\.0",
    ),
    "a layer of no kind": (
        "kimi_linear",
        {"layer_types": None, "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [3]}},
        r"linear_attn_config\.kda_layers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_the_maths_is_refused_by_name(case):
    toy, keys, message = REFUSED[case]
    checkpoint = make_toy(toy).checkpoint
    with pytest.raises(UnsupportedModel, match=message):
        draw(replace(checkpoint, metadata={**checkpoint.metadata, **keys}))


@pytest.mark.parametrize(
    "toy, keys, message",
    [
        ("lfm2", {"attention.head_count_kv": [0, 2, 3]}, "head_count_kv"),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "head_count_kv"),
        ("lfm2_moe", {"expert_gating_func": 1}, "expert_gating_func = 1"),
        ("qwen3_5", {"ssm.inner_size": 47}, r"ssm\.inner_size = 47"),
        ("qwen3_5", {"attention.recurrent_layers": [1]}, r"attention\.recurrent_layers"),
        ("kimi_linear", {"kda.gate_lower_bound": -5.0}, r"kda\.gate_lower_bound"),
    ],
)
def test_a_key_of_a_gguf_file_that_is_not_honoured_is_refused_by_name(toy, keys, message):
    checkpoint = make_toy(toy).as_gguf()
    arch = checkpoint.metadata["general.architecture"]
    changed = {**checkpoint.metadata, **{f"{arch}.{key}": value for key, value in keys.items()}}
    with pytest.raises(UnsupportedModel, match=message):
        draw(replace(checkpoint, metadata=changed))


def test_a_kernel_of_another_width_is_refused():
    checkpoint = make_toy("lfm2").checkpoint
    name = "model.layers.0.conv.conv.weight"
    tensors = {**checkpoint.tensors, **as_tensors({name: np.ones((48, 1, 4), np.float32)})}
    with pytest.raises(BadCheckpoint, match=r"conv\.conv\.weight is \[48, 1, 4\]; .* must be \[48, 1, 3\]"):
        draw(replace(checkpoint, tensors=tensors))
