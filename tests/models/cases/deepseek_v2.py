"""Toys of DeepSeek-V2. New GGUF files have keys and values in two tensors, keys transposed."""

from typing import Any

import numpy as np

from tests.models.case import Arrays, Case, Config, Conversion, Keys, expert_keys, rope, split_experts

KIND = "DeepseekV2ForCausalLM"
HEADS = {"num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2}
LAYERS = {"num_hidden_layers": 3, "first_k_dense_replace": 1}
LATENT: dict[str, Any] = {**HEADS, **EXPERTS, **LAYERS}
SCALED = rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.7)
CASES = {
    "deepseek_v2": Case(KIND, {**LATENT, "q_lora_rank": None, **SCALED}),  # as Lite
    "deepseek_v2-groups": Case(
        KIND,
        {**LATENT, "q_lora_rank": 28, "n_routed_experts": 16, "topk_method": "group_limited_greedy", "n_group": 4,
         "topk_group": 2, "routed_scaling_factor": 4.0},
    ),
    "deepseek_v2-biased": Case(
        KIND,
        {**LATENT, "q_lora_rank": 28, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
         **rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.5)},
        in_gguf=False,
    ),
}  # fmt: skip


def latent_keys(c: Config) -> Keys:
    """The keys of latent attention, as for one key head of the size of what the cache stores."""
    of_all = c.rope_parameters.get("mscale_all_dim")
    return {
        **expert_keys(c),
        "attention.head_count_kv": 1,
        "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.value_length": c.kv_lora_rank,
        "attention.key_length_mla": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length_mla": c.v_head_dim,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "attention.q_lora_rank": c.q_lora_rank,
        "rope.dimension_count": c.qk_rope_head_dim,
        "rope.scaling.yarn_log_multiplier": 0.1 * of_all if of_all else None,
    }


def routing_keys(c: Config, gating: int) -> Keys:
    """The keys of the router and of shared experts."""
    return {
        "expert_shared_count": c.n_shared_experts,
        "expert_weights_scale": c.routed_scaling_factor,
        "expert_gating_func": gating,
        "leading_dense_block_count": c.first_k_dense_replace,
        "expert_group_count": c.n_group,
        "expert_group_used_count": c.topk_group,
    }


def latent_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    """Keys and values apart; the others as in other models with experts."""
    if name.endswith("e_score_correction_bias"):
        return {name.replace("_bias", ".bias"): array}
    if not name.endswith("kv_b_proj.weight"):
        return split_experts(name, array, c)
    keys, values = np.split(array.reshape(c.num_attention_heads, -1, c.kv_lora_rank), [c.qk_nope_head_dim], axis=1)
    names = [name.replace("kv_b_proj", word) for word in ("k_b_proj", "v_b_proj")]
    return {names[0]: keys.swapaxes(1, 2), names[1]: values}


GGUF = Conversion("deepseek2", keys=lambda c: {**latent_keys(c), **routing_keys(c, 1)}, tensor=latent_tensor)
