"""Toys of Ernie 4.5 with experts. GGUF has no key for dense layers at the end, and no bias of the head."""

import numpy as np

from tests.models.case import TOKENS, Case, Config, Conversion, expert_keys, split_experts

KIND = "Ernie4_5_MoeForCausalLM"
EXPERTS = {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 40, "moe_num_shared_experts": 2, **TOKENS}
CASES = {
    "ernie4_5_moe": Case(KIND, {**EXPERTS, "num_hidden_layers": 3}),
    "ernie4_5_moe-step": Case(
        KIND,
        {**EXPERTS, "num_hidden_layers": 4, "moe_layer_interval": 2, "moe_num_shared_experts": 0,
         "moe_layer_start_index": 0, "tie_word_embeddings": False},
    ),
    "ernie4_5_moe-end": Case(
        KIND, {**EXPERTS, "num_hidden_layers": 4, "moe_layer_end_index": 2, "use_bias": True}, in_gguf=False
    ),
}  # fmt: skip


def tensors(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """GGUF has the correction as a vector."""
    if name.endswith("moe_statics.e_score_correction_bias"):
        stem = name.removesuffix("gate.moe_statics.e_score_correction_bias")
        return {f"{stem}moe_statics.e_score_correction.bias": array.reshape(-1)}
    return split_experts(name, array, c)


GGUF = Conversion(
    "ernie4_5-moe",
    keys=lambda c: {
        **expert_keys(c),
        "expert_count": c.moe_num_experts,
        "expert_used_count": c.moe_k,
        "interleave_moe_layer_step": c.moe_layer_interval,
        "leading_dense_block_count": c.moe_layer_start_index,
        "expert_shared_count": c.moe_num_shared_experts,
        "expert_shared_feed_forward_length": c.moe_num_shared_experts * c.moe_intermediate_size or None,
    },
    tensor=tensors,
)
