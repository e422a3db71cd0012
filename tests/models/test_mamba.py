"""Mixers of Mamba: sizes of published models, layouts of files, chunks, and what is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.models.describe import describe
from quire.models.draw import DrawnModel, draw
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.ops.cache import PagedKV, State
from quire.ops.registry import relative_error
from tests.models.published_mamba import PUBLISHED
from tests.models.toys import MemoryCheckpoint, Session, Toy, as_tensors, make_toy, some_tokens, toy_of

pytestmark = pytest.mark.pure

# In billions, without layers for drafting.
PARAMETERS = {
    "Mamba 130M": 0.129,
    "Falcon-Mamba 7B": 7.27,
    "Mamba-2 780M": 0.780,
    "Jamba 1.5 Mini": 51.6,
    "Bamba 9B": 9.78,
    "Granite 4.0 H 350M": 0.340,
    "Granite 4.0 H Tiny": 6.94,
    "Falcon-H1 0.5B": 0.521,
    "Nemotron-H 8B": 8.1,
    "Nemotron 3 Nano 30B A3B": 31.6,
}
# layers with attention, layers with mixers
LAYERS = {"Jamba 1.5 Mini": (4, 28), "Bamba 9B": (3, 29), "Granite 4.0 H 350M": (4, 28), "Granite 4.0 H Tiny": (4, 36),
          "Falcon-H1 0.5B": (36, 36), "Nemotron-H 8B": (4, 24), "Nemotron 3 Nano 30B A3B": (6, 23),
          "Mamba 130M": (0, 24)}  # fmt: skip


def drawn(name: str) -> DrawnModel:
    """A published model with random weights, of which none is made."""
    return draw(MemoryCheckpoint("dummy", PUBLISHED[name], {}))


def error_of(checkpoint: MemoryCheckpoint, toy: Toy, count: int = 30) -> float:
    """How far the logits are from those of transformers."""
    tokens = some_tokens(count)
    return relative_error(Session(draw(checkpoint)).step({"a": tokens})["a"], toy.expected_logits(tokens))


def with_keys(case: str, **keys: Any) -> MemoryCheckpoint:
    """The toy of a case with other values of keys; None: without them."""
    checkpoint = make_toy(case).checkpoint
    rest = {key: value for key, value in checkpoint.metadata.items() if key not in keys}
    return replace(checkpoint, metadata={**rest, **{key: each for key, each in keys.items() if each is not None}})


# --- published models


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_file_gives_a_model_of_the_published_size(name):
    weights = {id(weight): weight for weight in drawn(name).weights.values()}.values()
    assert sum(np.prod(each.shape, dtype=float) for each in weights) / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


@pytest.mark.parametrize("name", LAYERS)
def test_a_mixer_has_two_states_and_a_layer_with_attention_a_cache(name):
    kinds = [type(each) for each in drawn(name).graph.caches]
    assert (kinds.count(PagedKV), kinds.count(State) / 2) == LAYERS[name]


def test_a_model_without_attention_has_no_heads():
    for checkpoint in (make_toy("mamba").checkpoint, make_toy("mamba").as_gguf()):
        config = describe(checkpoint).config
        assert (config.num_heads, config.num_kv_heads, config.head_dim, config.ffn) == (0, 0, 0, 0)
        assert config.ropes == {} and config.max_context == 1 << 20


# --- layouts


def test_the_norm_of_several_groups_in_mamba_2_is_that_of_its_authors():
    """transformers has it in Nemotron-H; in Mamba-2 some releases norm all groups as one."""
    norms = pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h")
    sizes = {"num_heads": 6, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 16, "num_hidden_layers": 2}
    toy = toy_of("Mamba2ForCausalLM", sizes, seed=3)
    for layer in toy.torch_model.backbone.layers:
        right = norms.NemotronHRMSNormGated(96, group_size=48, eps=toy.torch_model.config.layer_norm_epsilon)
        right.weight, layer.mixer.norm = layer.mixer.norm.weight, right
    assert error_of(toy.checkpoint, toy) < 1e-4


def with_single_experts(case: str, stacks: dict[str, tuple[str, ...]]) -> MemoryCheckpoint:
    """The toy of a case with a tensor for each expert. `stacks`: the words of the parts of each stack."""
    tensors = dict(make_toy(case).checkpoint.tensors)
    for name in [name for name in tensors if name.endswith(tuple(stacks))]:
        stem, _, stack = name.rpartition(".")
        for expert, matrix in enumerate(tensors.pop(name).array):
            parts = zip(stacks[stack], np.split(matrix, len(stacks[stack])), strict=True)
            tensors |= as_tensors({f"{stem}.{expert}.{word}.weight": part for word, part in parts})
    return replace(make_toy(case).checkpoint, tensors=tensors)


def test_published_files_of_nemotron_h_have_another_prefix_and_a_tensor_for_each_expert():
    apart = with_single_experts("nemotron_h-experts", {"up_proj": ("up_proj",), "down_proj": ("down_proj",)})
    named = {re.sub(r"^model\.", "backbone.", name): each for name, each in apart.tensors.items()}
    named |= as_tensors({"mtp.layers.0.norm.weight": np.ones(48, np.float32)})  # of a layer for drafting
    pattern = {"hybrid_override_pattern": "ME*E", "num_hidden_layers": 4, "layers_block_type": None}
    keys = with_keys("nemotron_h-experts", **pattern).metadata
    assert error_of(MemoryCheckpoint("safetensors", keys, named), make_toy("nemotron_h-experts")) < 1e-4


def test_published_files_of_jamba_have_a_tensor_for_each_expert():
    words = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    assert error_of(with_single_experts("jamba", words), make_toy("jamba")) < 1e-4


def test_a_layer_of_a_gguf_file_of_jamba_must_be_whole():
    checkpoint = make_toy("jamba").as_gguf()
    tensors = {name: each for name, each in checkpoint.tensors.items() if name != "blk.1.ffn_down_exps.weight"}
    with pytest.raises(Exception, match=r"layers\.1\.experts\.down"):
        draw(replace(checkpoint, tensors=tensors))


def test_old_files_of_mamba_have_another_name_of_the_table():
    checkpoint = make_toy("mamba").checkpoint
    tensors = dict(checkpoint.tensors)
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    assert error_of(replace(checkpoint, tensors=tensors), make_toy("mamba")) < 1e-4


def test_gguf_layers_of_nemotron_h_for_drafting_are_left_out():
    checkpoint = make_toy("nemotron_h-experts").as_gguf()
    arch, keys = "nemotron_h_moe", dict(checkpoint.metadata)
    keys |= {f"{arch}.block_count": 5, f"{arch}.nextn_predict_layers": 1}
    for key in ("attention.head_count_kv", "feed_forward_length"):
        keys[f"{arch}.{key}"] = [*keys[f"{arch}.{key}"], 2]
    tensors = {**checkpoint.tensors, **as_tensors({"blk.4.nextn.eh_proj.weight": np.ones((48, 96), np.float32)})}
    assert error_of(MemoryCheckpoint("gguf", keys, tensors), make_toy("nemotron_h-experts")) < 1e-4


def test_no_limit_of_step_sizes_is_written_in_several_ways():
    expected = describe(make_toy("mamba2").checkpoint).config
    for limit in ([0.0, float("inf")], (0, {"__float__": "Infinity"}), None):
        assert describe(with_keys("mamba2", time_step_limit=limit)).config == expected


# --- chunks


@pytest.mark.device
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("case", ["mamba", "nemotron_h-experts", "falcon_h1-norm"])
def test_logits_do_not_depend_on_the_size_of_chunks(case, chunk):
    model, tokens = make_toy(case).draw(), some_tokens(530 if chunk == 512 else 70)
    whole, session = Session(model).step({"a": tokens})["a"], Session(model, seed=chunk)
    pieces = [session.step({"a": tokens[at : at + chunk]})["a"] for at in range(0, len(tokens), chunk)]
    assert np.array_equal(np.concatenate(pieces), whole)


# --- refusals

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "several groups in Granite 4": ("granitemoehybrid", {"mamba_n_groups": 2}, "mamba_n_groups = 2"),
    "several groups in Bamba": ("bamba", {"mamba_n_groups": 2}, "mamba_n_groups = 2"),
    "heads of another size": ("bamba", {"mamba_d_head": 12}, "mamba_d_head = 12"),
    "limits in the wrong order": ("mamba2", {"time_step_limit": [0.6, 0.2]}, "time_step_limit"),
    "one limit": ("mamba2", {"time_step_limit": [0.6]}, "time_step_limit"),
    "groups that no number of heads has": ("nemotron_h", {"n_groups": 4}, "6 heads in 4 groups"),
    "a letter that is no layer": ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX*-"}, "patt"),
    "too few layers": ("nemotron_h", {"num_hidden_layers": 5}, "layers_block_type .* 5 layers"),
    "two names with two values": ("nemotron_h", {"mamba_n_groups": 3}, "n_groups = 2 and mamba_n_groups = 3"),
    "several shared experts": ("nemotron_h-experts", {"n_shared_experts": 2}, "n_shared_experts = 2"),
    "another activation": ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
    "too few factors": ("falcon_h1", {"ssm_multipliers": [1.0, 1.0]}, "ssm_multipliers"),
    "an offset beyond its period": ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset, 3"),
    "no inner norms": ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms"),
    "layer types under another name": ("granitemoehybrid", {"layers_block_type": ["mamba"] * 3}, "layers_block_type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(case):
    toy, keys, named = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=named):
        describe(with_keys(toy, **keys))


def test_attention_where_the_file_has_a_mixer_is_refused():
    with pytest.raises(BadCheckpoint, match=r"layers\.0\.self_attn\.k_proj"):
        draw(with_keys("bamba", attn_layer_indices=[0]))
