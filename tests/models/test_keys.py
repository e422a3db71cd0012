"""Unread keys: one that may change the maths is refused by name; published config files are accepted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor
from quire.models.config import ModelConfig, read_config
from quire.models.errors import UnsupportedModel
from quire.models.registry import Architecture, find_architecture
from tests.models.published import LLAMA_3, MISTRAL, PUBLISHED, QWEN_2, QWEN_3
from tests.models.toys import CASES, ENCODERS, FIRST_CASES, ORIGINALS, SOURCES, MemoryCheckpoint, make_toy

pytestmark = pytest.mark.pure

# Tokens that end an answer may come from generation_config.json; the other is for random weights.
NOT_MATHS = {"eos_token_id", "initializer_range"}
ARCHITECTURES = pytest.mark.parametrize("arch", ORIGINALS, ids=lambda arch: arch.name)
ALL = pytest.mark.parametrize("arch", [*ORIGINALS, *ENCODERS, *SOURCES], ids=lambda arch: arch.name)


def read(config: dict[str, Any]) -> ModelConfig:
    checkpoint = MemoryCheckpoint("safetensors", config, {})
    arch = find_architecture(checkpoint)
    return read_config(checkpoint, arch.keys, arch.config)


def read_gguf(**keys: Any) -> ModelConfig:
    checkpoint = make_toy("llama").as_gguf()
    checkpoint = MemoryCheckpoint("gguf", {**checkpoint.metadata, **keys}, checkpoint.tensors)
    arch = find_architecture(checkpoint)
    return read_config(checkpoint, arch.keys, arch.config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_files_are_accepted(name):
    config = read(PUBLISHED[name])
    assert config.num_layers == PUBLISHED[name]["num_hidden_layers"]


def reference_of(arch: Architecture) -> Any:
    """The configuration class of transformers."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, arch.name):
        pytest.skip("the published model brings its own code, and transformers has none")
    return getattr(transformers, arch.name).config_class


# Keys without which the default configuration of a class is that of no model.
REQUIRED: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Dots1ForCausalLM": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Gemma3TextModel": {"use_bidirectional_attention": True},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv"] * 32},
}


def config_file(arch: Architecture) -> dict[str, Any]:
    """A config.json with every key that transformers writes, all with their default values."""
    names = {"architectures": [arch.name], "model_type": arch.model_types[0]}
    return {**reference_of(arch)().to_dict(), **REQUIRED.get(arch.name, {}), **names}


@ALL
def test_every_field_of_the_reference_class_is_read_or_harmless_or_refused(arch: Architecture):
    """Fails when transformers adds a field to a class, until the field is declared."""
    keys, reference = arch.keys.config, reference_of(arch)
    decided = {*keys.read, *keys.harmless, *keys.fixed, *keys.foreign, *keys.spelling.values(), *keys.synonyms}
    aliases = {theirs for ours, theirs in reference.attribute_map.items() if ours in decided}
    assert {each.name for each in dataclasses.fields(reference)} - decided - aliases == set()


@ALL
def test_a_key_that_is_left_out_has_the_default_of_the_reference_class(arch: Architecture):
    """Or it is required: then the error has its name."""
    whole = config_file(arch)
    config = read(whole)
    for key in sorted({*arch.keys.config.read, *arch.keys.config.spelling.values()} & whole.keys() - NOT_MATHS):
        rest = {name: value for name, value in whole.items() if name != key}
        try:
            assert read(rest) == config, key
        except UnsupportedModel as error:
            assert key in str(error)  # either outcome is right


@ARCHITECTURES
def test_a_field_with_a_fixed_value_is_refused_with_another_one(arch: Architecture):
    plain = make_toy(next(name for name in FIRST_CASES if CASES[name].kind == arch.name)).checkpoint.metadata
    keys = arch.keys.config
    undecided = {*keys.foreign, *keys.fixed} - {*keys.read, *keys.harmless, *keys.spelling.values(), *keys.synonyms}
    assert undecided
    for key in undecided:
        with pytest.raises(UnsupportedModel, match=rf"{key} = 'something'.*{arch.name}"):
            read({**plain, key: "something"})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "attention to what comes later": (LLAMA_3 | {"is_causal": False}, "is_causal = False"),
    "a part of the head": (LLAMA_3 | {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5"),
    "a part of the head, on Qwen": (QWEN_3 | {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5"),
    "rope by layer type": (
        QWEN_3 | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        r"rope_parameters\.full_attention",
    ),
    "another engine's yarn": (
        LLAMA_3 | {"rope_scaling": {"type": "yarn", "factor": 2, "attn_factor": 2}},
        "attn_factor",
    ),
    "sections of rope": (
        QWEN_2 | {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
        "mrope_section",
    ),
    "unknown layers without a window": (QWEN_3 | {"layer_types": ["linear_attention"] * 28}, "linear_attention"),
    "too few layer types": (QWEN_3 | {"layer_types": ["full_attention"] * 27}, "layer_types has 27 .* 28"),
    "windows with the switch off": (QWEN_3 | {"layer_types": ["sliding_attention"] * 28}, "sliding_attention"),
    "windows in some layers of Llama": (LLAMA_3 | {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
    "no windows in some layers of Mistral": (MISTRAL | {"layer_types": ["full_attention"] * 32}, "layer_types"),
    "a window of nothing": (MISTRAL | {"sliding_window": 0}, "sliding_window = 0"),
    "another model's type": (LLAMA_3 | {"model_type": "mistral"}, "model_type 'mistral'.*LlamaForCausalLM.*'llama'"),
    "code of its own": (LLAMA_3 | {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "auto_map"),
    "a configuration of its own": (LLAMA_3 | {"auto_map": {"AutoConfig": "configuration_x.X"}}, "auto_map"),
    "layers that differ": (LLAMA_3 | {"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config"),
    "capped scores": (LLAMA_3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50"),
    "scaled logits": (LLAMA_3 | {"logit_scale": 0.0625}, "logit_scale"),
    "logits times zero": (LLAMA_3 | {"logit_scale": 0}, "logit_scale"),
    "scaled embeddings": (LLAMA_3 | {"embedding_multiplier": 12}, "embedding_multiplier"),
    "experts": (LLAMA_3 | {"num_experts": 8}, "num_experts"),
    "normed heads": (LLAMA_3 | {"use_qk_norm": True}, "use_qk_norm"),
    "rope in pairs": (LLAMA_3 | {"rope_interleaved": True}, "rope_interleaved"),
    "another activation": (LLAMA_3 | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "no activation": (LLAMA_3 | {"hidden_act": None}, "hidden_act = None"),
    "linear rope without a factor": (LLAMA_3 | {"rope_scaling": {"type": "linear"}}, r"'rope_scaling\.factor'"),
    "yarn without a factor": (LLAMA_3 | {"rope_scaling": {"type": "yarn"}}, r"'rope_scaling\.factor'"),
    "llama3 without its factors": (LLAMA_3 | {"rope_scaling": {"type": "llama3", "factor": 8}}, r"low_freq_factor"),
    "first window layer null": (
        QWEN_2 | {"use_sliding_window": True, "max_window_layers": None},
        "'max_window_layers'",
    ),
    "rotated weights": (
        LLAMA_3 | {"quantization_config": {"quant_method": "compressed-tensors", "transform_config": {"a": 1}}},
        "transform_config",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unread_key_that_changes_the_maths_is_refused_by_name(case):
    config, named = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=named):
        read(config)


@pytest.mark.parametrize(
    "keys, named",
    [
        ({"llama.attention.causal": False}, r"llama\.attention\.causal = False"),
        ({"llama.rope.dimension_count": 4}, r"llama\.rope\.dimension_count = 4: it must be 8"),
        ({"llama.expert_count": 8}, r"llama\.expert_used_count"),
        ({"llama.logit_scale": 0.5}, r"llama\.logit_scale = 0\.5"),
        ({"llama.attention.scale": 0.5}, r"llama\.attention\.scale"),
        ({"llama.attn_logit_softcapping": 30.0}, r"llama\.attn_logit_softcapping"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, r"'llama\.attention\.layer_norm_rms_epsilon'"),
        ({"tokenizer.ggml.eos_token_id": "</s>"}, r"tokenizer\.ggml\.eos_token_id = '</s>'"),
    ],
)
def test_an_unread_gguf_key_that_changes_the_maths_is_refused_by_name(keys, named):
    with pytest.raises(UnsupportedModel, match=named):
        read_gguf(**keys)


def test_gguf_keys_that_change_nothing_are_accepted():
    plain = read_gguf()
    same = {
        "llama.vocab_size": 131,
        "llama.rope.dimension_count": 8,
        "llama.expert_count": 0,
        "llama.attention.causal": True,
        "llama.attention.layer_norm_epsilon": 1e-5,
        "llama.logit_scale": 1.0,
        "llama.tensor_data_layout": "Meta AI original pth",
        "llama.rope.scaling.type": "none",
        "general.file_type": 7,
        "llamacpp.anything": 3,
    }
    assert read_gguf(**same) == plain


def test_every_key_that_gguf_has_for_a_model_is_declared_or_refused():
    constants = pytest.importorskip("gguf.constants")

    def names(holder: type) -> list[str]:
        found = [value for name, value in vars(holder).items() if not name.startswith("_")]
        inner = [name for each in found if isinstance(each, type) for name in names(each)]
        return [each for each in found if isinstance(each, str) and each.startswith("{arch}.")] + inner

    llama = find_architecture(make_toy("llama").checkpoint)
    declared = {*llama.keys.gguf.read, *llama.keys.gguf.harmless, "expert_count"}  # with experts it is Mixtral
    others = [name.removeprefix("{arch}.") for name in names(constants.Keys)]
    others = [name for name in others if name not in declared and "{" not in name]
    assert len(others) > 40
    for name in others:
        with pytest.raises(UnsupportedModel, match=f"llama.{name} = 2"):
            read_gguf(**{f"llama.{name}": 2})


def test_a_gguf_factor_without_a_type_is_linear():
    assert read_gguf(**{"llama.rope.scaling.factor": 4.0}).ropes["all"].kind == "linear"
    assert (
        read_gguf(**{"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}).ropes["all"].kind
        == "default"
    )


def test_an_architecture_may_read_a_foreign_key():
    llama = find_architecture(make_toy("llama").checkpoint)
    keys = llama.keys.config.override(reads=["logit_scale"], ignores=["attention_bias"])
    values = keys.values({"logit_scale": 0.5, "attention_bias": True}, "NewForCausalLM")
    assert values.number("logit_scale") == 0.5 and "attention_bias" not in values


def test_a_model_whose_embedding_table_has_no_rows_is_refused():
    checkpoint = make_toy("llama").as_gguf()
    tensors = {**checkpoint.tensors, "token_embd.weight": ComputedTensor("token_embd.weight", np.array(1, np.float32))}
    with pytest.raises(UnsupportedModel, match=r"token_embd\.weight"):
        arch = find_architecture(checkpoint)
        read_config(MemoryCheckpoint("gguf", checkpoint.metadata, tensors), arch.keys, arch.config)
