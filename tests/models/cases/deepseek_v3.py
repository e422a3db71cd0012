"""Toys of DeepSeek-V3, Kimi-K2 and Moonlight."""

from tests.models.case import TOKENS, Case, Config, Conversion, Keys, rope
from tests.models.cases.deepseek_v2 import LATENT, latent_keys, latent_tensor, routing_keys

KIND = "DeepseekV3ForCausalLM"
GROUPS = {"n_routed_experts": 16, "n_group": 4, "topk_group": 2}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
SCALED = rope("yarn", factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0)
CASES = {
    "deepseek_v3": Case(KIND, {**LATENT, **GROUPS, **TOKENS, "q_lora_rank": 28, **SCALED}),
    "deepseek_v3-one-group": Case(KIND, {**LATENT, **ONE_GROUP, **TOKENS, "q_lora_rank": None, "n_shared_experts": 1}),
    "deepseek_v3-rope-in-halves": Case(
        KIND,
        {**LATENT, **GROUPS, **TOKENS, "q_lora_rank": 28, "rope_interleave": False, "norm_topk_prob": False,
         "attention_bias": True},
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    return {**latent_keys(c), **routing_keys(c, 2), "expert_weights_norm": c.norm_topk_prob}


GGUF = Conversion("deepseek2", keys=_keys, tensor=latent_tensor)
