"""Toys of K-EXAONE. In GGUF the layers without experts are the first ones."""

from tests.models.case import TOKENS, Case, Config, Conversion, Keys, expert_keys
from tests.models.cases.deepseek_v2 import latent_tensor, routing_keys

KIND = "ExaoneMoeForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 2}
SIZES = {**EXPERTS, **TOKENS, "head_dim": 8, "num_hidden_layers": 3}
CASES = {
    "exaone_moe": Case(KIND, {**SIZES, "sliding_window": 9, "sliding_window_pattern": 2}),
    "exaone_moe-listed": Case(
        KIND,
        {**SIZES, "sliding_window": 9, "sliding_window_pattern": "LLG", "layer_types": [SLIDING, SLIDING, FULL],
         "mlp_layer_types": ["sparse", "dense", "sparse"], "num_experts": 16, "n_group": 4, "topk_group": 2},
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    c.n_shared_experts = c.num_shared_experts
    return {
        **expert_keys(c),
        **routing_keys(c, 2),
        "expert_shared_feed_forward_length": c.moe_intermediate_size * c.num_shared_experts,
        "expert_weights_norm": c.norm_topk_prob,
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in c.layer_types],
    }


GGUF = Conversion("exaone-moe", keys=_keys, tensor=latent_tensor)
