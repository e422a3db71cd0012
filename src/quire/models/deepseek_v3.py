"""DeepSeek-V3, R1 and V3.1, Kimi-K2, Moonlight, …: DeepSeek-V2 with sigmoid scores and a correction of the choice."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.deepseek_v2 import DEEPSEEK_CONFIG, LATENT_WORDS, deepseek_v2
from quire.models.grouped_moe import CORRECTED_NAMES, GROUPED_GGUF, SIGMOID
from quire.models.keys import ConfigKeys
from quire.models.latent import BIASED, GGUF_KEYS, LatentConfig
from quire.models.registry import architecture

METHOD = "noaux_tc"
V3_CONFIG = DEEPSEEK_CONFIG.override(
    reads=["norm_topk_prob", "rope_interleave", "num_nextn_predict_layers"],
    ignores=["mlp_bias"],
    fixed={"topk_method": (None, METHOD), "scoring_func": (None, SIGMOID)},
    defaults={
        **{
            "topk_method": METHOD,
            "scoring_func": SIGMOID,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "num_experts": 256,
        },
        **{"n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 2048},
        **{"n_shared_experts": 1, "first_k_dense_replace": 3, "eos_token_id": 1, "num_nextn_predict_layers": 1},
    },
    synonyms={"num_local_experts": "num_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    biases={"attention_bias": BIASED},
)
LATENT_GGUF = GROUPED_GGUF.override(reads=GGUF_KEYS, head_dim="rope.dimension_count")


@architecture(
    "DeepseekV3ForCausalLM",
    model_type=("deepseek_v3", "kimi_k2"),
    gguf="deepseek2",
    names=CORRECTED_NAMES.but(**LATENT_WORDS),
    keys=ConfigKeys(V3_CONFIG, LATENT_GGUF),
    config=LatentConfig,
)
def deepseek_v3(g: Graph, c: LatentConfig) -> Value:
    """The routing is in the configuration. GGUF files of DeepSeek-V2 have this architecture's name."""
    return deepseek_v2(g, c)
