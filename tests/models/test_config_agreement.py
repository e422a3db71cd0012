"""Random edits of a config file: whatever we accept, we read as transformers does."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.models.config import ModelConfig, read_config
from quire.models.registry import find_architecture
from quire.types.errors import QuireError
from tests.models.toys import SIZES, MemoryCheckpoint

pytestmark = pytest.mark.pure

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
scale = st.sampled_from([0.5, 1, 1.0, 2.0, 4, 8.0])
length = st.sampled_from([16, 64, 256, 4096])
theta = st.sampled_from([10000, 10000.0, 5e5, 1000000])
kind = st.sampled_from(["default", "linear", "llama3", "yarn"])
rope = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": kind,
        "type": kind,
        "rope_theta": theta,
        "factor": scale | st.none(),
        "original_max_position_embeddings": length,
        "low_freq_factor": st.sampled_from([1, 1.0, 2.0]),
        "high_freq_factor": st.sampled_from([2.0, 4, 4.0]),
        "beta_fast": st.sampled_from([None, 0, 16, 32.0]),
        "beta_slow": st.sampled_from([None, 0, 1, 2.0]),
        "mscale": st.sampled_from([None, 0, 1.0, 0.7]),
        "mscale_all_dim": st.sampled_from([None, 0, 1.0, 0.4]),
        "attention_factor": st.sampled_from([None, 1.0, 1.3]),
        "truncate": st.sampled_from([None, True, False]),
        "partial_rotary_factor": st.sampled_from([1.0, 0.5]),
    },
)
kinds = st.lists(st.sampled_from(["full_attention", "sliding_attention", "attention", "chunked_attention"]), min_size=1)
edits = st.fixed_dictionaries(
    {},
    optional={
        "rope_scaling": st.none() | rope,
        "rope_parameters": st.none() | rope,
        "rope_theta": theta,
        "partial_rotary_factor": st.sampled_from([1.0, 0.5]),
        "original_max_position_embeddings": length,
        "max_position_embeddings": length,
        "head_dim": st.sampled_from([None, 8, 12]),
        "num_key_value_heads": st.sampled_from([None, 1, 2, 3, 6]),
        "rms_norm_eps": st.sampled_from([1e-5, 1e-6, 0.0]),
        "tie_word_embeddings": st.booleans(),
        "sliding_window": st.sampled_from([None, 4, 32]),
        "use_sliding_window": st.booleans(),
        "max_window_layers": st.sampled_from([0, 1, 2, 28]),
        "layer_types": st.none() | kinds.filter(lambda listed: len(listed) in (1, 2, 3)),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "hidden_act": st.sampled_from(["silu", "swish", "gelu"]),
    },
)


def ours(config: dict[str, Any]) -> ModelConfig | None:
    checkpoint = MemoryCheckpoint("safetensors", config, {})
    try:
        arch = find_architecture(checkpoint)
        return read_config(checkpoint, arch.keys, arch.config)
    except QuireError:
        return None


def theirs(family: str, config: dict[str, Any]) -> Any:
    """The transformers model, without memory for its weights; None if transformers refuses the config."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    transformers.logging.set_verbosity_error()
    try:
        read = getattr(transformers, f"{family}Config").from_dict(copy.deepcopy(config))
        with torch.device("meta"):
            return getattr(transformers, f"{family}ForCausalLM")(read)
    except Exception:
        return None


def windows_of(family: str, model: Any) -> tuple[int | None, ...]:
    if family == "Llama":
        return (None,) * len(model.model.layers)
    if family == "Mistral":
        return (model.config.sliding_window,) * len(model.model.layers)
    return tuple(layer.self_attn.sliding_window for layer in model.model.layers)


@settings(max_examples=150, deadline=None)
@given(family=st.sampled_from(FAMILIES), changes=edits)
def test_what_we_accept_is_read_as_transformers_reads_it(family, changes):
    config = {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower(), **SIZES, **changes}
    found, model = ours(config), theirs(family, config)
    if found is None or model is None:
        return
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    module = importlib.import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
    rotary = getattr(module, f"{family}RotaryEmbedding")(model.config)
    np.testing.assert_allclose(found.ropes["all"].frequencies(), rotary.inv_freq.numpy(), rtol=1e-5)
    assert found.ropes["all"].scaling == pytest.approx(rotary.attention_scaling)
    assert found.windows == windows_of(family, model)
    assert found.head_dim == attention.head_dim
    assert found.num_heads // found.num_kv_heads == attention.num_key_value_groups
    assert found.norm_eps == model.model.norm.variance_epsilon
    assert found.tied == model.config.tie_word_embeddings
    qwen2 = {"attn.q", "attn.k", "attn.v"} if family == "Qwen2" else set()  # always, so not in the configuration
    biased = {f"attn.{word}" for word in "qkv" if getattr(attention, f"{word}_proj").bias is not None}
    biased |= {"attn.out"} if attention.o_proj.bias is not None else set()
    biased |= {f"mlp.{word}" for word in ("gate", "up", "down") if getattr(mlp, f"{word}_proj").bias is not None}
    assert found.biased | qwen2 == biased
