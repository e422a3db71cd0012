"""Toys of Cohere 2 with experts."""

from tests.models.case import TOKENS, Case

KIND = "Cohere2MoeForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
SIZES = {"num_experts": 8, "num_experts_per_tok": 3, "head_dim": 8, "sliding_window": 9, **TOKENS}
CASES = {
    "cohere2_moe": Case(
        KIND,
        {**SIZES, "rms_norm_eps": None, "num_hidden_layers": 5, "first_k_dense_replace": 1, "num_shared_experts": 1,
         "expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 72},
    ),
    "cohere2_moe-rms": Case(
        KIND,
        {**SIZES, "num_hidden_layers": 3, "layer_types": [FULL, SLIDING, FULL], "attention_bias": True,
         "mlp_layer_types": ["sparse", "dense", "sparse"], "num_shared_experts": 2,
         "shared_expert_combination_strategy": "sum", "prefix_dense_sliding_window_pattern": 2},
    ),
}  # fmt: skip
GGUF = None
