"""Frequencies against those of transformers, for every kind, from config.json and GGUF."""

from __future__ import annotations

import numpy as np
import pytest

from quire.models.errors import UnsupportedModel
from quire.models.keys import RopeRules
from quire.models.rope import rope_from_config, rope_from_gguf
from quire.models.values import Values

pytestmark = pytest.mark.pure

KINDS = {
    "default": {},
    "linear": {"factor": 8.0},
    "llama3": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 0.9,
    },
}


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [64, 128, 10])
@pytest.mark.parametrize("case", KINDS)
def test_frequencies_and_scaling_are_those_of_transformers(case, head_dim, theta):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": case, "rope_theta": theta, **KINDS[case]}
    sizes = {"head_dim": head_dim, "hidden_size": 4 * head_dim, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=131072, rope_parameters=rope)
    if case == "default":
        module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        expected, scaling = module.inv_freq, module.attention_scaling
    else:
        expected, scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    ours = rope_from_config(Values(config.to_dict()), head_dim, 131072)
    assert ours.frequencies().dtype == np.float32
    tolerance = 4e-6 if rope["rope_type"] == "yarn" else 5e-7  # theirs subtracts its ramp from one in float32
    np.testing.assert_allclose(ours.frequencies(), expected.numpy(), rtol=tolerance)
    assert ours.scaling == pytest.approx(scaling)


LONG_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 3.5, 4.5]}
BY_LENGTH = {
    "dynamic": {"factor": 4.0},
    "longrope": {**LONG_FACTORS, "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("context", [1, 64, 65, 200, 4096])
@pytest.mark.parametrize("kind", BY_LENGTH)
def test_frequencies_that_depend_on_the_length_are_those_of_transformers_for_it(kind, context):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "rope_theta": 10000.0, **BY_LENGTH[kind]}
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    expected, scaling = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=context)
    ours = rope_from_config(Values(config.to_dict()), 8, 64)
    np.testing.assert_allclose(ours.frequencies(context), expected.numpy(), rtol=1e-6)
    assert ours.scaling == pytest.approx(scaling)


def test_a_fixed_alpha_stretches_the_base_for_every_length():
    given = Values({"rope_parameters": {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}})
    rope = rope_from_config(given, 64, 4096, RopeRules(has_alpha=True))
    assert rope.kind == "default" and rope.theta == pytest.approx(10000.0 * 50.0 ** (64 / 62))
    with pytest.raises(UnsupportedModel, match=r"rope_parameters\.alpha"):
        rope_from_config(given, 64, 4096)


def test_old_and_new_keys_of_config_json_give_the_same_rope():
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    older = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5}
    assert rope_from_config(Values(newer), 64, 4096) == rope_from_config(Values(older), 64, 4096)
    assert rope_from_config(Values({"rope_scaling": None, "rope_theta": 5e5}), 64, 4096).theta == 5e5
    assert rope_from_config(Values({}), 64, 4096).theta == 10000.0


def test_gguf_keys_give_the_same_rope_as_config_json():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e6}
    keys = {
        "rope.freq_base": 1e6,
        "rope.dimension_count": 64,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 1024,
    }
    assert rope_from_gguf(Values(keys), 64, 4096) == rope_from_config(Values({"rope_parameters": yarn}), 64, 4096)
    assert rope_from_gguf(Values({"rope.scale_linear": 2.0}), 64, 4096).kind == "linear"
    assert rope_from_gguf(Values({"rope.scaling.type": "none"}), 64, 4096).kind == "default"


def test_partial_rotation_of_heads_is_refused():
    """transformers still rotates the whole head in these architectures; other implementations rotate a part."""
    for config in ({"partial_rotary_factor": 0.25}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(UnsupportedModel, match=r"partial_rotary_factor = 0\.\d+: it must be 1"):
            rope_from_config(Values(config), 64, 4096)
    assert rope_from_config(Values({"partial_rotary_factor": 1.0}), 64, 4096).rotary_dim == 64
    with pytest.raises(UnsupportedModel, match=r"llama\.rope\.dimension_count = 32: it must be 64"):
        rope_from_gguf(Values({"rope.dimension_count": 32}, "llama."), 64, 4096)


@pytest.mark.parametrize("kind", ["ntk", "su"])
def test_an_unknown_kind_is_refused_with_the_known_ones(kind):
    with pytest.raises(UnsupportedModel, match=f"{kind}.*default, linear, llama3, yarn, dynamic, longrope"):
        rope_from_config(Values({"rope_parameters": {"rope_type": kind, "factor": 2.0}}), 64, 4096)
