"""GLM-4.7-Flash: DeepSeek-V3 with other numbers. Its GGUF files have that architecture's name."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.deepseek_v2 import LATENT_WORDS, deepseek_v2
from quire.models.deepseek_v3 import V3_CONFIG
from quire.models.grouped_moe import CORRECTED_NAMES
from quire.models.keys import ConfigKeys
from quire.models.latent import LatentConfig
from quire.models.registry import architecture

CONFIG = V3_CONFIG.override(
    reads=["mlp_layer_types"],
    fixed={"first_k_dense_replace": (None, 1)},
    defaults={
        **{"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8},
        **{"n_group": 1, "topk_group": 1, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256},
        **{"rms_norm_eps": 1e-5, "first_k_dense_replace": 1},
    },
)


@architecture(
    "Glm4MoeLiteForCausalLM",
    model_type="glm4_moe_lite",
    names=CORRECTED_NAMES.but(**LATENT_WORDS),
    keys=ConfigKeys(CONFIG),
    config=LatentConfig,
)
def glm4_moe_lite(g: Graph, c: LatentConfig) -> Value:
    """The numbers are in the configuration."""
    return deepseek_v2(g, c)
