"""Toys of Qwen3-MoE. GGUF has no key for its window, for weights that are not renormalized, nor for dense layers."""

from tests.models.case import EXPERTS, Case, Conversion, expert_keys, split_experts

KIND = "Qwen3MoeForCausalLM"
DENSE = {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
WINDOW = {"use_sliding_window": True, "sliding_window": 7}
CASES = {
    "qwen3_moe": Case(KIND, {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe-dense-window": Case(KIND, {**EXPERTS, **DENSE, **WINDOW}, in_gguf=False),
    "qwen3_moe-tied-biased": Case(
        KIND, {**EXPERTS, "tie_word_embeddings": True, "attention_bias": True, "norm_topk_prob": True}
    ),
}
GGUF = Conversion("qwen3moe", keys=expert_keys, tensor=split_experts)
