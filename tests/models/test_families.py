"""What the config files of families say: kinds of layers, ropes and sizes, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quire.models.config import ModelConfig, read_config
from quire.models.draw import draw
from quire.models.errors import UnsupportedModel
from quire.models.names import stored_shapes
from quire.models.registry import find_architecture
from tests.models.case import SIZES, VOCAB
from tests.models.published_families import FULL, PUBLISHED, SLIDING
from tests.models.toys import MemoryCheckpoint, as_tensors

pytestmark = pytest.mark.pure

GEMMA_4 = PUBLISHED["Gemma 4 E2B, its text model"]


def read(config: dict[str, Any]) -> ModelConfig:
    checkpoint = MemoryCheckpoint("safetensors", config, {})
    arch = find_architecture(checkpoint)
    return read_config(checkpoint, arch.keys, arch.config)


def windows(name: str) -> str:
    """The first layers as letters: s for a window, f for none."""
    return "".join("f" if window is None else "s" for window in read(PUBLISHED[name]).windows)[:12]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_files_are_accepted(name):
    assert read(PUBLISHED[name]).num_layers == PUBLISHED[name]["num_hidden_layers"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_published_sizes_are_drawn(name):
    model = draw(MemoryCheckpoint("dummy", PUBLISHED[name], {}))
    assert len(model.graph.caches) == model.config.num_layers - PUBLISHED[name].get("num_kv_shared_layers", 0)


def test_layers_have_the_windows_of_their_family():
    assert windows("Gemma 2 9B") == "sf" * 6
    assert windows("Gemma 3 1B") == "sssssf" * 2
    assert windows("Command R7B") == windows("Olmo 3 7B") == "sssf" * 3
    assert windows("Phi-4 mini") == "s" * 12
    assert windows("SmolLM3 3B") == windows("Gemma 2B") == windows("VaultGemma 1B") == "f" * 12


def test_ropes_differ_by_layer_type():
    gemma, olmo, gemma4 = (read(PUBLISHED[name]).ropes for name in ("Gemma 3 1B", "Olmo 3 7B", list(PUBLISHED)[-1]))
    assert (gemma[FULL].theta, gemma[SLIDING].theta) == (1e6, 1e4)
    assert (olmo[FULL].kind, olmo[SLIDING].kind) == ("yarn", "default")
    assert (gemma4[FULL].kind, gemma4[FULL].full_dim, gemma4[FULL].rotary_dim) == ("proportional", 512, 128)
    assert (gemma4[SLIDING].kind, gemma4[SLIDING].rotary_dim) == ("default", 256)


def test_sizes_of_gemma_4_are_those_of_the_layer():
    config = read(GEMMA_4)
    local, full, shared = (config.sizes(layer) for layer in (0, 4, 15))
    assert (local["head_dim"], full["head_dim"]) == (256, 512)
    assert (full["ffn"], shared["ffn"]) == (6144, 12288)
    larger = read({**GEMMA_4, "attention_k_eq_v": True, "num_key_value_heads": 4, "num_global_key_value_heads": 2})
    assert (larger.sizes(0)["kv"], larger.sizes(4)["kv"]) == (4 * 256, 2 * 512)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"enable_moe_block": True, "num_experts": 8}, "top_k_experts"),
        ({"enable_moe_block": True, "num_experts": 8, "top_k_experts": 9, "moe_intermediate_size": 8}, "top_k_experts"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ({"vocab_size_per_layer_input": 1000}, "vocab_size_per_layer_input = 1000"),
        ({"num_kv_shared_layers": 35}, "The last 35 layers"),
        ({"num_kv_shared_layers": 32}, "The last 32 layers"),  # the first three have a window
        ({"per_layer_config": {"4": {"head_dim": 512}, "9": {"head_dim": 128}}}, "per_layer_config"),
        ({"per_layer_config": {"0": {"head_dim": 512}}}, "per_layer_config"),
        ({"per_layer_config": {"4": {"intermediate_size": 512}}}, "per_layer_config"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "8 query heads cannot share 3"),
        ({"rope_theta": 10000.0}, "rope_theta = 10000.0"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters = .* each layer type"),
        ({"rope_parameters": {SLIDING: {"rope_type": "default"}}}, "rope_parameters = .* each layer type"),
        ({"global_head_dim": 17, "rope_parameters": None}, "Heads of 17 numbers"),
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
    ],
)
def test_what_gemma_4_does_not_support_is_refused_by_name(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        read({**GEMMA_4, **change})


@pytest.mark.parametrize(
    "name, change, named",
    [
        ("Gemma 3 1B", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("Gemma 3 1B", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ("Gemma 3 1B", {"rope_scaling": {"type": "linear", "factor": 8.0}}, r"rope_scaling\.type"),
        ("Command R7B", {"use_qk_norm": True}, "use_qk_norm = True"),
        ("Command R7B", {"rotary_pct": 0.5}, "rotary_pct = 0.5"),
        ("SmolLM3 3B", {"no_rope_layers": [1, 0]}, "no_rope_layers = .* a list of 36 numbers"),
        ("SmolLM3 3B", {"no_rope_layers": [2] * 36}, "no_rope_layers"),
        ("Olmo 3 7B", {"rope_local_base_freq": 1e4}, "rope_local_base_freq"),
        ("OLMo 7B", {"clip_qkv": "8"}, "clip_qkv = '8'"),
        ("Phi-2", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ],
)
def test_what_changes_the_maths_of_a_family_is_refused_by_name(name, change, named):
    with pytest.raises(UnsupportedModel, match=named):
        read({**PUBLISHED[name], **change})


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
def test_a_model_of_text_and_images_is_refused_with_the_name_of_its_text_model(kind):
    name = kind.capitalize()
    config = {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": kind,
        "text_config": {"model_type": f"{kind}_text"},
    }
    with pytest.raises(UnsupportedModel, match=f"Its text model is {name}ForCausalLM"):
        read(config)


def test_tensors_for_the_keys_of_layers_that_share_others_are_ignored():
    metadata = {
        "architectures": ["Gemma4ForCausalLM"],
        **SIZES,
        **{
            "head_dim": 8,
            "global_head_dim": 16,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "sliding_window": 3,
        },
        **{"layer_types": [SLIDING, FULL] * 2, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": VOCAB},
    }
    checkpoint = MemoryCheckpoint("safetensors", metadata, {})
    arch = find_architecture(checkpoint)
    config = read_config(checkpoint, arch.keys, arch.config)
    shapes = stored_shapes("safetensors", config, arch.names)
    extra = {name.replace("layers.0", "layers.2"): shapes[name] for name in shapes if ".0.self_attn.k_" in name}
    assert len(extra) == 2
    arrays = {name: np.ones(shape, np.float32) for name, shape in (shapes | extra).items()}
    model = draw(replace(checkpoint, tensors=as_tensors(arrays)))
    assert len(model.graph.caches) == 2


def test_a_gguf_file_of_gpt_neox_with_fewer_key_heads_is_refused_by_name():
    keys = {"block_count": 2, "context_length": 64, "embedding_length": 48, "feed_forward_length": 88}
    keys |= {"attention.head_count": 6, "attention.head_count_kv": 2, "attention.layer_norm_epsilon": 1e-5}
    metadata = {"general.architecture": "gptneox", **{f"gptneox.{key}": value for key, value in keys.items()}}
    table = as_tensors({"token_embd.weight": np.zeros((VOCAB, 48), np.float32)})
    with pytest.raises(UnsupportedModel, match=r"gptneox\.attention\.head_count_kv = 2: it must be 6"):
        draw(MemoryCheckpoint("gguf", metadata, table))
