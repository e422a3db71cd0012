"""Toys of Qwen2-MoE. GGUF has no keys for its window, for renormalized weights, nor for dense layers."""

import numpy as np

from tests.models.case import EXPERTS, Case, Config, Conversion, expert_keys, split_experts

KIND = "Qwen2MoeForCausalLM"
SIZES = {**EXPERTS, "shared_expert_intermediate_size": 56}
DENSE = {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1], "norm_topk_prob": True}
WINDOW = {
    "use_sliding_window": True,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
CASES = {
    "qwen2_moe": Case(KIND, SIZES),
    "qwen2_moe-dense-window": Case(KIND, {**SIZES, **DENSE, **WINDOW, "qkv_bias": False}, in_gguf=False),
}


def tensors(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """The gate of the shared expert is a vector in GGUF."""
    return array.reshape(-1) if name.endswith("shared_expert_gate.weight") else split_experts(name, array, c)


GGUF = Conversion(
    "qwen2moe",
    keys=lambda c: {
        **expert_keys(c),
        "expert_shared_feed_forward_length": c.shared_expert_intermediate_size,
        "rope.dimension_count": None,
    },
    tensor=tensors,
)
