"""Toys of dots.llm1. GGUF has no key for its windows."""

from tests.models.case import Case, Config, Conversion, Keys, expert_keys
from tests.models.cases.deepseek_v2 import EXPERTS, LAYERS, latent_tensor, routing_keys

KIND = "Dots1ForCausalLM"
CASES = {
    "dots1": Case(KIND, {**EXPERTS, **LAYERS, "head_dim": 16, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "dots1-window": Case(
        KIND,
        {**EXPERTS, **LAYERS, "sliding_window": 7, "max_window_layers": 2, "attention_bias": True, "head_dim": 8},
        in_gguf=False,
    ),
}


def _keys(c: Config) -> Keys:
    return {**expert_keys(c), **routing_keys(c, 2), "expert_weights_norm": c.norm_topk_prob}


GGUF = Conversion("dots1", keys=_keys, tensor=latent_tensor)
