"""Toys of MiniMax-M2."""

import numpy as np

from tests.models.case import TOKENS, Case, Config, Conversion, expert_keys, rope, split_experts

KIND = "MiniMaxM2ForCausalLM"
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40, "head_dim": 16, **TOKENS}
CASES = {
    "minimax_m2": Case(KIND, {**EXPERTS, "rotary_dim": 8}, oldest="5.23"),  # 5.17 rotates all of a head
    "minimax_m2-share": Case(KIND, {**EXPERTS, **rope("default", partial_rotary_factor=0.25)}),
}


def tensors(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """Names as published; the correction is a bias."""
    found = split_experts(name, array, c)
    if name.endswith(".mlp.e_score_correction_bias"):
        return {name.replace("mlp.e_score_correction_bias", "block_sparse_moe.e_score_correction.bias"): array}
    if name.endswith(".mlp.gate.weight"):
        return {name.replace("mlp.gate", "block_sparse_moe.gate"): array}
    return found


GGUF = Conversion(
    "minimax-m2",
    keys=lambda c: {
        **expert_keys(c),
        "expert_feed_forward_length": c.intermediate_size,
        "expert_gating_func": 2,
        "rope.dimension_count": int(c.head_dim * c.rope_parameters["partial_rotary_factor"]),
    },
    tensor=tensors,
)
