"""Toys of Gemma 4. GGUF files have the divisors of the proportional rope as a tensor: 1, or 1e30 for still pairs."""

from typing import Any

import numpy as np

from tests.models.case import VOCAB, Arrays, Case, Config, Conversion, Keys

KIND = "Gemma4ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
HEADS = {"head_dim": 8, "global_head_dim": 16, "sliding_window": 7}
INPUTS = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 12}
CASES = {
    "gemma4": Case(  # as E2B: embeddings for each layer, shared keys, wider blocks in layers that share
        KIND,
        {
            **HEADS,
            **INPUTS,
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma4-v-from-k": Case(  # as 31B: v from the matrix of k, fewer key heads, no embeddings for each layer
        KIND,
        {
            **HEADS,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, FULL],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "gemma4-experts": Case(  # as 26B-A4B
        KIND,
        {
            **HEADS,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, FULL],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ),
    "gemma4-biased": Case(KIND, {**HEADS, **INPUTS, "attention_bias": True, "attention_k_eq_v": True}, in_gguf=False),
}


def _keys(c: Config) -> Keys:
    full = c.per_layer_config[c.layer_types.index(FULL)]
    slides = [each == SLIDING for each in c.layer_types]
    shared = c.num_kv_shared_layers
    ffns: Any = [c.intermediate_size] * (len(slides) - shared) + [2 * c.intermediate_size] * shared
    return {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input,
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": slides,
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), full.head_dim),
        **dict.fromkeys(
            ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"), c.head_dim
        ),
        "attention.head_count_kv": [c.num_key_value_heads if each else full.num_key_value_heads for each in slides],
        "feed_forward_length": ffns if c.use_double_wide_mlp else c.intermediate_size,
        "final_logit_softcapping": c.final_logit_softcapping,
        **({} if not c.enable_moe_block else _expert_keys(c)),
        "rope.freq_base": c.rope_parameters[FULL]["rope_theta"],
        "rope.freq_base_swa": c.rope_parameters[SLIDING]["rope_theta"],
    }


def _expert_keys(c: Config) -> Keys:
    numbers = {"count": c.num_experts, "used_count": c.top_k_experts, "feed_forward_length": c.moe_intermediate_size}
    return {f"expert_{name}": number for name, number in numbers.items()}


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    stem = name.partition(".router.")[0]
    if name.endswith("router.scale"):
        return {f"{stem}.router.proj.scale": array}
    if name.endswith("router.per_expert_scale"):
        return {f"{stem}.experts.down_proj.scale": array}
    return {f"{name}.weight": array} if name.endswith(("layer_scalar", "gate_up_proj", "experts.down_proj")) else array


def _divisors(c: Config) -> Arrays:
    pairs = c.per_layer_config[c.layer_types.index(FULL)].head_dim // 2
    turning = int(pairs * c.rope_parameters[FULL]["partial_rotary_factor"])
    return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)}


GGUF = Conversion("gemma4", keys=_keys, tensor=_tensor, extra=_divisors)
