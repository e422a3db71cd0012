"""Toys of Mellum. The gguf package has no names for it."""

from tests.models.case import EXPERTS, Case

KIND = "MellumForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
ROPES = {
    FULL: {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
WINDOWS = {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, FULL, SLIDING], "sliding_window": 9}
CASES = {
    "mellum": Case(KIND, {**EXPERTS, **WINDOWS, "head_dim": 16, "rope_parameters": ROPES}, in_gguf=False),
    "mellum-full": Case(
        KIND,
        {**EXPERTS, "norm_topk_prob": False, "attention_bias": True, "mlp_layer_types": ["dense", "sparse"],
         "tie_word_embeddings": True, "head_dim": 8},
        in_gguf=False,
    ),
}  # fmt: skip
GGUF = None
