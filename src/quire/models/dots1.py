"""dots.llm1: the attention of Qwen3 and the routing of DeepSeek-V3."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.grouped_moe import CONFIG_KEYS, CORRECTED_NAMES, GROUPED_GGUF, UNUSED_KEYS, GroupedMoeConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = CORRECTED_NAMES.but(
    {
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
    }
)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "norm_topk_prob", "sliding_window", "max_window_layers", "layer_types"],
    ignores=[*UNUSED_KEYS, "mlp_bias"],
    fixed={"topk_method": (None, "noaux_tc"), "scoring_func": (None, "sigmoid", "noaux_tc")},
    spelling={"num_experts": "n_routed_experts"},
    synonyms={"num_local_experts": "num_experts"},
    defaults={"moe_intermediate_size": 1408, "n_group": 1, "topk_group": 1, "num_key_value_heads": 32,
              "sliding_window": 4096, "max_window_layers": 62},
)  # fmt: skip


@architecture(
    "Dots1ForCausalLM",
    model_type="dots1",
    gguf="dots1",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GROUPED_GGUF),
    config=GroupedMoeConfig,
)
def dots1(g: Graph, c: GroupedMoeConfig) -> Value:
    """Pre-norm decoder. The first layers have a feed-forward block instead of experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), head_norm="rms"))
        x = g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
