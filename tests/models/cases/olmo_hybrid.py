"""Toys of OLMo-Hybrid. Published files have other names of norms, and a kernel for each of q, k and v."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config

KIND = "OlmoHybridForCausalLM"
FULL, LINEAR = "full_attention", "linear_attention"
HEADS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}


def published(arrays: Arrays, c: Config) -> Arrays:
    """The tensors of published files."""
    found: Arrays = {}
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    for name, array in arrays.items():
        if name.startswith("model.layers.") and c.layer_types[int(name.split(".")[2])] == LINEAR:
            name = name.replace("input_layernorm", "attention_layer_norm")
            name = name.replace("post_attention_layernorm", "feedforward_layer_norm")
        if name.endswith("conv1d.weight"):
            for word, part in zip("qkv", np.split(array, [keys, 2 * keys]), strict=True):
                found[name.replace("conv1d", f"{word}_conv1d")] = part
        else:
            found[name] = array
    return found


CASES = {
    "olmo_hybrid": Case(
        KIND,
        {**TOKENS, **HEADS, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL]},
        published=published,
    ),
    "olmo_hybrid-without-rope": Case(
        KIND,
        {**TOKENS, "num_hidden_layers": 2, "rope_parameters": {"rope_theta": None, "rope_type": "default"},
         "linear_allow_neg_eigval": False, "attention_bias": True},
        published=published,
    ),
}  # fmt: skip
GGUF = None
