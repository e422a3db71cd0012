"""Toys of Trinity (AFMoE). In GGUF embeddings are always scaled, and every fourth layer has no window."""

import numpy as np

from tests.models.case import Arrays, Case, Config, Conversion, Keys, expert_keys, split_experts

KIND = "AfmoeForCausalLM"
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 1}
SIZES = {**EXPERTS, "head_dim": 8, "sliding_window": 7}
CASES = {
    "afmoe": Case(KIND, {**SIZES, "num_hidden_layers": 4, "mup_enabled": True, "route_scale": 2.5}),
    "afmoe-biased": Case(
        KIND,
        {**SIZES, "num_hidden_layers": 3, "global_attn_every_n_layers": 2, "attention_bias": True,
         "num_dense_layers": 2},
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    return {
        **expert_keys(c),
        "expert_shared_count": c.num_shared_experts,
        "expert_weights_scale": c.route_scale,
        "expert_weights_norm": True,
        "leading_dense_block_count": c.num_dense_layers,
        "attention.sliding_window": c.sliding_window,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    return {f"{name}.bias": array} if name.endswith("expert_bias") else split_experts(name, array, c)


GGUF = Conversion("afmoe", keys=_keys, tensor=_tensor)
