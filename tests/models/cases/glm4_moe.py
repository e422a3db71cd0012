"""Toys of GLM-4.5."""

from tests.models.case import Case, Config, Conversion, Keys, expert_keys
from tests.models.cases.deepseek_v2 import EXPERTS, LAYERS, latent_tensor, routing_keys

KIND = "Glm4MoeForCausalLM"
CASES = {
    "glm4_moe": Case(KIND, {**EXPERTS, **LAYERS, "use_qk_norm": True, "attention_bias": True, "head_dim": 16}),
    "glm4_moe-groups": Case(
        KIND,
        {**EXPERTS, **LAYERS, "n_routed_experts": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
         "head_dim": 8},
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    return {
        **expert_keys(c),
        **routing_keys(c, 2),
        "expert_weights_norm": c.norm_topk_prob,
        "rope.dimension_count": int(c.head_dim * c.rope_parameters["partial_rotary_factor"]),
    }


GGUF = Conversion("glm4moe", keys=_keys, tensor=latent_tensor)
