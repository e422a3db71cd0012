"""Configurations with arbitrary values: they are read, or refused with an error that names a changed key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.models.config import ModelConfig, read_config
from quire.models.registry import all_architectures, find_architecture
from quire.types.errors import QuireError
from tests.models.published import AWQ, FP8, FP8_DYNAMIC, GPTQ, LLAMA_3, MISTRAL, QWEN_2, QWEN_3, W4A16
from tests.models.toys import MemoryCheckpoint, as_tensors

pytestmark = pytest.mark.pure

TINY = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
BASES = [{**base, **TINY} for base in (LLAMA_3, MISTRAL, QWEN_2, QWEN_3)]
GGUF = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 48,
    "feed_forward_length": 96,
    "attention.head_count": 6,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = as_tensors({"token_embd.weight": np.zeros((104, 48), np.float32)})

whole = st.sampled_from([0, 1, -1, 2, 7, 2**31, 2**63, 10**400, -(10**400)]) | st.integers()
real = st.floats() | st.sampled_from([0.0, 1.0, 0.5, 1e-320, 1e308, 4096.0])
plain = st.none() | st.booleans() | whole | real | st.text(max_size=8) | st.sampled_from(["silu", "default", "yarn"])
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)

ROPE_KEYS = [
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale"),
    *("mscale_all_dim", "full_attention"),
]
KINDS = st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic"])
WAYS = [AWQ, GPTQ, FP8, W4A16, FP8_DYNAMIC]


def keys_of(arch: Any, container: str) -> list[str]:
    found = getattr(arch.keys, container)
    return sorted({*found.read, *found.harmless, *found.fixed, *found.foreign})


CONFIG_KEYS = sorted({key for arch in all_architectures() for key in keys_of(arch, "config")})
GGUF_KEYS = [*keys_of(all_architectures()[0], "gguf"), "expert_count", "attention.scale"]


def check(container: str, metadata: dict[str, Any], changed: list[str]) -> None:
    """Read it. An error must name one of the keys that were changed."""
    checkpoint = MemoryCheckpoint(container, metadata, TENSORS if container == "gguf" else {})
    try:
        arch = find_architecture(checkpoint)
        config = read_config(checkpoint, arch.keys, arch.config)
    except QuireError as error:
        assert any(key in error.public for key in changed), (error.public, changed)
        assert len(error.public) < 1000
        return
    assert isinstance(config, ModelConfig) and len(config.windows) == config.num_layers
    assert np.isfinite(config.ropes["all"].frequencies()).all() and np.isfinite(config.ropes["all"].scaling)
    assert len(config.ropes["all"].frequencies()) == config.head_dim // 2


@settings(max_examples=300, deadline=None)
@given(
    base=st.sampled_from(BASES), changes=st.dictionaries(st.sampled_from(CONFIG_KEYS), anything, min_size=1, max_size=3)
)
def test_any_value_of_any_key_of_config_json_is_read_or_refused_by_name(base, changes):
    check("safetensors", {**base, **changes}, [*changes, "architecture", "model_type"])


@settings(max_examples=200, deadline=None)
@given(
    base=st.sampled_from(BASES),
    kind=KINDS,
    changes=st.dictionaries(st.sampled_from(ROPE_KEYS), plain | anything, max_size=4),
    key=st.sampled_from(["rope_scaling", "rope_parameters"]),
)
def test_any_value_in_rope_scaling_is_read_or_refused_by_name(base, kind, changes, key):
    full = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": kind}
    rope = {**full, "original_max_position_embeddings": 128, **changes}
    check("safetensors", {**base, key: rope}, [*changes, "Rope scaling of the type", "factor"])


@settings(max_examples=200, deadline=None)
@given(way=st.sampled_from(WAYS), data=st.data())
def test_any_value_in_quantization_config_is_read_or_refused_by_name(way, data):
    changes = data.draw(st.dictionaries(st.sampled_from([*way, "w_bit", "is_marlin_format"]), anything, max_size=3))
    weights = data.draw(
        st.dictionaries(st.sampled_from(["type", "num_bits", "group_size", "block_structure"]), anything)
    )
    config = {**way, **changes}
    if "config_groups" in way and "config_groups" not in changes:
        group = way["config_groups"]["group_0"]
        config["config_groups"] = {"group_0": {**group, "weights": {**group["weights"], **weights}}}
    check("safetensors", {**LLAMA_3, "quantization_config": config}, ["quantization_config"])


@settings(max_examples=50, deadline=None)
@given(value=anything)
def test_any_quantization_config_is_read_or_refused(value):
    check("safetensors", {**LLAMA_3, "quantization_config": value}, ["quantization_config"])


@settings(max_examples=300, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(GGUF_KEYS), anything, min_size=1, max_size=3), kind=st.none() | KINDS)
def test_any_value_of_any_key_of_gguf_is_read_or_refused_by_name(changes, kind):
    changes = changes if kind is None else {"rope.scaling.type": kind, "rope.scaling.factor": 2.0} | changes
    given_keys = {f"llama.{key}": value for key, value in (GGUF | changes).items()}
    named = [*changes, "Rope scaling of the type", "window pattern", "expert_used_count"]
    check("gguf", {"general.architecture": "llama", **given_keys}, named)


@settings(max_examples=50, deadline=None)
@given(ids=anything, name=anything)
def test_any_end_token_and_any_architecture_of_gguf_is_read_or_refused(ids, name):
    keys = {f"llama.{key}": value for key, value in GGUF.items()}
    ends = {"tokenizer.ggml.eos_token_id": ids}
    check("gguf", {"general.architecture": "llama", **keys, **ends}, ["eos_token_id"])
    check("gguf", {"general.architecture": name, **keys}, ["architecture"])
