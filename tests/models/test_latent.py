"""Latent attention and the routing of DeepSeek: layouts of files, layers for drafting, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor
from quire.models.draw import DrawnModel, draw
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from quire.weights.quantized_tensors import ScaledTensor
from tests.models.published_latent import PUBLISHED
from tests.models.quantized import write_checkpoint
from tests.models.toys import MemoryCheckpoint, Session, as_tensors, make_toy, some_tokens

pytestmark = pytest.mark.pure

LATENT = ("deepseek_v2", "deepseek_v3")


def error_of(model: DrawnModel, case: str, count: int = 30) -> float:
    """How far the logits are from those of transformers."""
    tokens = some_tokens(count)
    return relative_error(Session(model).step({"a": tokens})["a"], make_toy(case).expected_logits(tokens))


def with_keys(checkpoint: MemoryCheckpoint, **keys: Any) -> MemoryCheckpoint:
    """The checkpoint with other values of keys; None: without them."""
    rest = {key: value for key, value in checkpoint.metadata.items() if key not in keys}
    return replace(checkpoint, metadata={**rest, **{key: each for key, each in keys.items() if each is not None}})


def in_gguf(case: str, **keys: Any) -> MemoryCheckpoint:
    """The GGUF file of a toy, with other values of keys. Dots in their names are written as two underscores."""
    checkpoint = make_toy(case).as_gguf()
    arch = checkpoint.metadata["general.architecture"]
    return with_keys(checkpoint, **{f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()})


# --- layouts


def old_tensors(checkpoint: MemoryCheckpoint, keep: bool) -> dict[str, ComputedTensor]:
    """Keys and values in one tensor, as files before April 2025 have them; `keep`: beside the new ones."""
    tensors = dict(checkpoint.tensors)
    for name in [name for name in tensors if name.endswith("attn_k_b.weight")]:
        stem = name.removesuffix("attn_k_b.weight")
        keys, values = (tensors[f"{stem}attn_{word}_b.weight"].array for word in "kv")
        both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)  # [heads, plain + value, latent]
        tensors |= as_tensors({f"{stem}attn_kv_b.weight": both.reshape(-1, both.shape[-1])})
        if not keep:
            del tensors[f"{stem}attn_k_b.weight"], tensors[f"{stem}attn_v_b.weight"]
    return tensors


@pytest.mark.parametrize("case", LATENT)
@pytest.mark.parametrize("keep", [False, True], ids=["attn_kv_b", "both"])
def test_old_gguf_files_have_keys_and_values_in_one_tensor(case, keep):
    c = make_toy(case).torch_model.config
    key_length = c.qk_nope_head_dim + c.qk_rope_head_dim
    lengths = {"attention__key_length": key_length, "attention__value_length": c.v_head_dim}
    without = {"attention__key_length_mla": None, "attention__value_length_mla": None}
    checkpoint = in_gguf(case, **lengths, **without, attention__head_count_kv=c.num_attention_heads)
    model = draw(replace(checkpoint, tensors=old_tensors(checkpoint, keep)))
    assert error_of(model, case) < 1e-4


@pytest.mark.parametrize("case", ["deepseek_v3", "llama4-converted"])
def test_gguf_files_may_have_gate_and_up_in_one_stack(case):
    checkpoint = make_toy(case).as_gguf()
    tensors = dict(checkpoint.tensors)
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        parts = [tensors.pop(name.replace("gate", word)).array for word in ("gate", "up")]
        tensors |= as_tensors({name.replace("gate", "gate_up"): np.concatenate(parts, axis=1)})
    assert len(tensors) < len(checkpoint.tensors)
    assert error_of(draw(replace(checkpoint, tensors=tensors)), case) < 1e-4


def expert_tensors(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """A tensor for each expert, as safetensors of quantized models have them."""
    stem, _, word = name.rpartition(".")
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: array}
    stacks = {"down": array} if word == "down_proj" else dict(zip(("gate", "up"), np.split(array, 2, 1), strict=True))
    return {f"{stem}.{i}.{word}_proj.weight": each for word, stack in stacks.items() for i, each in enumerate(stack)}


def two_stacks(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """A stack for gate and one for up, as GGUF files of other models have them."""
    if "gate_up_exps" not in name:
        return {name: array}
    names = (name.replace("gate_up", word) for word in ("gate", "up"))
    return dict(zip(names, np.split(array, 2, 1), strict=True))


@pytest.mark.parametrize("split", [expert_tensors, two_stacks])
def test_gate_and_up_of_gemma_4_may_be_stored_apart(split):
    toy = make_toy("gemma4-experts")
    checkpoint = toy.checkpoint if split is expert_tensors else toy.as_gguf()
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in checkpoint.tensors.items():
        arrays |= split(name, tensor.array)
    assert len(arrays) > len(checkpoint.tensors)
    assert error_of(draw(replace(checkpoint, tensors=as_tensors(arrays))), "gemma4-experts") < 1e-4


@pytest.mark.parametrize("case", [*LATENT, "glm4_moe"])
def test_the_scoring_of_gguf_files_that_do_not_name_it_is_that_of_their_correction(case):
    model = draw(in_gguf(case, expert_gating_func=None))
    assert model.config.scoring == ("softmax" if case == "deepseek_v2" else "sigmoid")
    assert error_of(model, case) < 1e-4


def test_a_latent_is_what_the_cache_stores():
    specs = make_toy("deepseek_v3").draw().graph.caches
    assert len(specs) == 3 and {spec.values_per_token for spec in specs} == {20 + 8}


@pytest.mark.parametrize("case", ["deepseek_v2-groups", "deepseek_v3"])
def test_a_checkpoint_in_8_bit_blocks_keeps_its_values(case, tmp_path):
    """As DeepSeek-V3 is published: experts apart, a scale for each block, heads cut across blocks."""
    make_toy(case).torch_model.save_pretrained(tmp_path)
    arrays = {name: tensor.dequantize() for name, tensor in open_checkpoint(tmp_path).tensors.items()}
    checkpoint = replace(make_toy(case).checkpoint, tensors=as_tensors(arrays))
    meant = write_checkpoint("fp8-blocks", tmp_path, checkpoint)
    found, expected = draw(open_checkpoint(tmp_path)), draw(replace(checkpoint, tensors=as_tensors(meant)))
    for name, weight in expected.weights.items():
        np.testing.assert_allclose(found.weights[name].float32(), weight.float32(), rtol=1e-6, err_msg=name)
    assert isinstance(found.weights["layers.1.attn.keys"].source, ScaledTensor)
    tokens = some_tokens(20)
    logits = [Session(model).step({"a": tokens})["a"] for model in (found, expected)]
    assert relative_error(*logits) < 1e-5


# --- layers for drafting


def with_extra_layer(checkpoint: MemoryCheckpoint, prefix: str) -> MemoryCheckpoint:
    """With the tensors of one more layer, and with some that only such layers have."""
    last = f"{prefix}.2."
    extra = {name.replace(last, f"{prefix}.3."): each for name, each in checkpoint.tensors.items() if last in name}
    own = as_tensors({f"{prefix}.3.eh_proj.weight": np.ones((4, 4), np.float32)})
    return replace(checkpoint, tensors={**checkpoint.tensors, **extra, **own})


@pytest.mark.parametrize("case", ["deepseek_v3", "glm4_moe", "glm4_moe_lite"])
def test_layers_for_drafting_are_ignored(case):
    checkpoint = with_keys(make_toy(case).checkpoint, num_nextn_predict_layers=1)
    model = draw(with_extra_layer(checkpoint, "model.layers"))
    assert model.config.num_layers == 3
    assert error_of(model, case) < 1e-4


@pytest.mark.parametrize("case", ["glm4_moe", "glm4_moe_lite"])
def test_layers_for_drafting_are_ignored_in_gguf(case):
    model = draw(with_extra_layer(in_gguf(case, block_count=4, nextn_predict_layers=1), "blk"))
    assert model.config.num_layers == 3
    assert error_of(model, case) < 1e-4


def test_a_layer_beyond_those_that_the_configuration_names_is_an_error():
    checkpoint = with_keys(make_toy("deepseek_v3").checkpoint, num_nextn_predict_layers=0)
    with pytest.raises(BadCheckpoint, match=r"model\.layers\.3\."):
        draw(with_extra_layer(checkpoint, "model.layers"))
    with pytest.raises(UnsupportedModel, match="nextn_predict_layers = 3"):
        draw(in_gguf("glm4_moe", nextn_predict_layers=3))


# --- names and keys


def test_kimi_k2_is_deepseek_v3_under_another_type():
    checkpoint = with_keys(make_toy("deepseek_v3-one-group").checkpoint, model_type="kimi_k2")
    assert error_of(draw(checkpoint), "deepseek_v3-one-group") < 1e-4
    with pytest.raises(UnsupportedModel, match="model_type is 'deepseek_v3' or 'kimi_k2'"):
        draw(with_keys(checkpoint, model_type="kimi_k3"))


# In billions, without layers for drafting and parts for images.
PARAMETERS = {
    "DeepSeek V2 Lite": 15.7,
    "DeepSeek V2": 235.7,
    "DeepSeek V3": 671.0,
    "Kimi K2": 1026.4,
    "GLM 4.5 Air": 106.9,
    "GLM 4.6": 352.8,
    "GLM 4.7 Flash": 29.9,
    "Llama 4 Scout, its text model": 107.8,
    "Llama 4 Maverick, its text model": 400.7,
    "Gemma 4 26B A4B, its text model": 25.2,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_file_gives_a_model_of_the_published_size(name):
    """Drawn with random weights, of which none is made."""
    model = draw(MemoryCheckpoint("dummy", PUBLISHED[name], {}))
    weights = {id(weight): weight for weight in model.weights.values()}.values()
    assert sum(np.prod(each.shape, dtype=float) for each in weights) / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


REFUSED = {
    "softmax on V3": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
    "sigmoid on V2": ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func = 'sigmoid'"),
    "renormalized weights on V2": ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True"),
    "another choice on V2": ("deepseek_v2", {"topk_method": "noaux"}, "topk_method = 'noaux'"),
    "another choice on V3": ("deepseek_v3", {"topk_method": "greedy"}, "topk_method = 'greedy'"),
    "experts in every second layer": ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
    "an indexer": ("deepseek_v3", {"index_topk": 2048}, "index_topk = 2048"),
    "groups of different sizes": ("deepseek_v3", {"n_group": 3}, "n_group"),
    "too few experts in the chosen groups": ("deepseek_v3", {"n_group": 16, "topk_group": 2}, "n_group"),
    "a part of the rotated part": ("glm4_moe_lite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "too few kinds of layers": ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    "more dense layers by an old key": ("glm4_moe_lite", {"first_k_dense_replace": 2}, "first_k_dense_replace = 2"),
    "another activation": ("glm4_moe", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "no chunk": ("llama4", {"attention_chunk_size": 0}, "attention_chunk_size = 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_changes_the_maths_is_refused_by_name(case):
    toy, keys, named = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=named):
        draw(with_keys(make_toy(toy).checkpoint, **keys))


REFUSED_IN_GGUF: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown scoring": ("deepseek_v3", {"expert_gating_func": 4}, "expert_gating_func = 4"),
    "groups of different sizes": ("deepseek_v3", {"expert_group_count": 3}, "expert_group_count"),
    "heads that rope turns whole": ("deepseek_v3", {"attention__key_length_mla": 8}, "attention.key_length_mla = 8"),
    "queries that grow": ("deepseek_v3", {"attention__temperature_scale": 0.1}, "attention.temperature_scale = 0.1"),
    "no chunks": (
        "llama4-converted",
        {"attention__sliding_window": 0},
        "attention.sliding_window = 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED_IN_GGUF)
def test_what_changes_the_maths_of_a_gguf_file_is_refused_by_name(case):
    toy, keys, named = REFUSED_IN_GGUF[case]
    with pytest.raises(UnsupportedModel, match=named):
        draw(in_gguf(toy, **keys))
