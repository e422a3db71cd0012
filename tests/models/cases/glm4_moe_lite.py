"""Toys of GLM-4.7-Flash. In GGUF the layers without experts are the first ones."""

from tests.models.case import TOKENS, Case, Config, Conversion, Keys
from tests.models.cases.deepseek_v2 import EXPERTS, HEADS, latent_keys, latent_tensor, routing_keys

KIND = "Glm4MoeLiteForCausalLM"
FLASH = {**HEADS, **EXPERTS, **TOKENS, "num_hidden_layers": 3, "q_lora_rank": 28, "n_shared_experts": 1}
CASES = {
    "glm4_moe_lite": Case(KIND, FLASH),
    "glm4_moe_lite-listed": Case(KIND, {**FLASH, "mlp_layer_types": ["sparse", "dense", "sparse"]}, in_gguf=False),
}


def _keys(c: Config) -> Keys:
    c.first_k_dense_replace = c.mlp_layer_types.index("sparse")
    return {**latent_keys(c), **routing_keys(c, 2), "expert_weights_norm": c.norm_topk_prob}


GGUF = Conversion("deepseek2", keys=_keys, tensor=latent_tensor)
