"""Reading a model's configuration from config.json and GGUF."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.models.config import read_config
from quire.models.errors import UnsupportedModel
from quire.models.registry import all_architectures, find_architecture
from tests.models.toys import MemoryCheckpoint, as_tensors

pytestmark = pytest.mark.pure

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.context_length": 512,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 6,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


LLAMA = next(arch for arch in all_architectures() if arch.name == "LlamaForCausalLM")
FULL_HEADS = {"num_key_value_heads": 6}


def from_json(architecture="LlamaForCausalLM", **keys):
    checkpoint = MemoryCheckpoint("safetensors", {**CONFIG, **keys, "architectures": [architecture]}, {})
    arch = find_architecture(checkpoint)
    return read_config(checkpoint, arch.keys, arch.config)


def from_gguf(**keys):
    tensors = as_tensors({"token_embd.weight": np.zeros((104, 48), np.float32)})
    return read_config(MemoryCheckpoint("gguf", {**GGUF, **keys}, tensors), LLAMA.keys)


def test_missing_keys_get_defaults_that_depend_on_the_other_keys():
    c = from_json()
    assert (c.head_dim, c.num_kv_heads, c.tied, c.eos_ids, c.norm_eps) == (8, 6, False, (), 1e-6)
    assert c.windows == (None,) * 4 and c.ropes["all"].rotary_dim == 8 and not c.biased
    assert from_json("Qwen3ForCausalLM", **FULL_HEADS).head_dim == 128
    assert from_json("MistralForCausalLM", **FULL_HEADS).windows == (4096,) * 4


def test_null_means_left_out():
    c = from_json("MistralForCausalLM", head_dim=None, sliding_window=None, num_key_value_heads=None, eos_token_id=None)
    assert (c.head_dim, c.num_kv_heads, c.windows, c.eos_ids) == (8, 6, (None,) * 4, ())


def test_qwen_has_a_window_only_behind_its_switch_and_only_in_later_layers():
    window = {"sliding_window": 32, "max_window_layers": 3, **FULL_HEADS}
    assert from_json("Qwen2ForCausalLM", **window).windows == (None,) * 4
    assert from_json("Qwen2ForCausalLM", **window, use_sliding_window=True).windows == (None, None, None, 32)
    kinds = ["sliding_attention", "full_attention"] * 2
    listed = from_json("Qwen3ForCausalLM", **window, use_sliding_window=True, layer_types=kinds)
    assert listed.windows == (32, None, 32, None)


def test_end_tokens_are_one_or_many():
    assert from_json(eos_token_id=2).eos_ids == (2,)
    assert from_json(eos_token_id=[128001, 128009, 128001]).eos_ids == (128001, 128009)
    keys = {"tokenizer.ggml.eos_token_id": np.uint32(2), "tokenizer.ggml.eot_token_id": np.uint32(5)}
    assert from_gguf(**keys).eos_ids == (2, 5)


def test_gguf_metadata_gives_the_same_configuration():
    expected = replace(from_json(rms_norm_eps=1e-5), vocab_size=104, tied=True)
    found = from_gguf()
    assert replace(found, ropes=expected.ropes, num_labels=expected.num_labels) == expected
    assert np.array_equal(found.ropes["all"].frequencies(), expected.ropes["all"].frequencies())


class Decoding(dict):
    """Metadata that fails if the vocabulary is accessed."""

    def __getitem__(self, key):
        assert key != "tokenizer.ggml.tokens"
        return super().__getitem__(key)

    def items(self):
        return [(key, self[key]) for key in self]


def test_reading_the_configuration_does_not_decode_the_vocabulary():
    metadata = Decoding(GGUF | {"tokenizer.ggml.tokens": ("a", "b")})
    tensors = as_tensors({"token_embd.weight": np.zeros((100, 48), np.float32)})
    assert read_config(MemoryCheckpoint("gguf", metadata, tensors), LLAMA.keys).num_layers == 4


def test_gguf_may_list_heads_per_layer_if_they_are_all_equal():
    assert from_gguf(**{"llama.attention.head_count_kv": (2, 2, 2, 2)}).num_kv_heads == 2
    with pytest.raises(UnsupportedModel, match=r"differ in 'llama\.attention\.head_count_kv'"):
        from_gguf(**{"llama.attention.head_count_kv": (2, 2, 1, 2)})


def test_gguf_windows_apply_to_all_layers_or_to_the_listed_ones():
    assert from_gguf(**{"llama.attention.sliding_window": 0}).windows == (None,) * 4
    assert from_gguf(**{"llama.attention.sliding_window": 64}).windows == (64,) * 4
    listed = {
        "llama.attention.sliding_window": 64,
        "llama.attention.sliding_window_pattern": (True, False, True, False),
    }
    assert from_gguf(**listed).windows == (64, None, 64, None)


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "quip"}}, "quip"),
        ({"hidden_size": None}, "hidden_size"),
        ({"sliding_window": 8, "layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
    ],
)
def test_an_unsupported_value_is_refused_by_name(keys, message):
    with pytest.raises(UnsupportedModel, match=message):
        from_json(**keys)


def test_a_gguf_file_that_is_not_a_language_model_is_refused():
    with pytest.raises(UnsupportedModel, match=r"token_embd\.weight"):
        read_config(MemoryCheckpoint("gguf", GGUF, {}), LLAMA.keys)
    with pytest.raises(UnsupportedModel, match="different sizes"):
        from_gguf(**{"llama.attention.key_length": 8, "llama.attention.value_length": 16})
    with pytest.raises(UnsupportedModel, match="pattern"):
        from_gguf(**{"llama.attention.sliding_window_pattern": [True]})


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedModel, match=r"BloomForCausalLM.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        find_architecture(MemoryCheckpoint("safetensors", {"architectures": ["BloomForCausalLM"]}, {}))
    with pytest.raises(UnsupportedModel, match=r"bloom.*llama, .*qwen2, .*qwen3"):
        find_architecture(MemoryCheckpoint("gguf", {"general.architecture": "bloom"}, {}))
    with pytest.raises(UnsupportedModel, match="none"):
        find_architecture(MemoryCheckpoint("safetensors", {}, {}))


def test_every_architecture_is_discovered():
    found = {arch.name for arch in all_architectures()}
    assert {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"} <= found
