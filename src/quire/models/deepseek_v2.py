"""DeepSeek-V2 and V2-Lite: latent attention, and experts of which some are used by all tokens."""

from __future__ import annotations

from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import moe_mlp
from quire.models.config import MLP
from quire.models.grouped_moe import CONFIG_KEYS, EXPERT_NAMES, SOFTMAX, UNUSED_KEYS
from quire.models.keys import ConfigKeys
from quire.models.latent import BIASED, IGNORED, LATENT_NAMES, LAYOUTS, LatentConfig, attend_latent
from quire.models.latent import CONFIG_KEYS as LATENT_KEYS
from quire.models.llama import LLAMA_CONFIG
from quire.models.registry import architecture

LATENT_WORDS: dict[str, Any] = {
    "entries": {"attn.k": None, "attn.v": None, **LATENT_NAMES},
    "layouts": {**EXPERT_NAMES.layouts, **LAYOUTS}, "ignored": IGNORED,
}  # fmt: skip
DEEPSEEK_CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, *LATENT_KEYS, "topk_method"],
    ignores=[*UNUSED_KEYS, "head_dim", "num_key_value_heads"],
    fixed={"moe_layer_freq": (None, 1), "scoring_func": (None, SOFTMAX), "norm_topk_prob": (None, False)},
    spelling={"num_experts": "n_routed_experts"},
    defaults={
        **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "num_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407},
        **{"topk_method": "greedy", "scoring_func": SOFTMAX, "eos_token_id": 2},
    },
    biases={"attention_bias": BIASED, "mlp_bias": (*MLP, "shared.gate", "shared.up", "shared.down")},
    head_dim="qk_rope_head_dim",
)


def deepseek_layer(g: Graph, c: LatentConfig, layer: Layer, x: Value) -> Value:
    """Draw a layer: latent attention, then experts or a feed-forward block."""
    x = g.add(x, attend_latent(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
    return g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing))


@architecture(
    "DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    names=EXPERT_NAMES.but(**LATENT_WORDS),
    keys=ConfigKeys(DEEPSEEK_CONFIG),
    config=LatentConfig,
)
def deepseek_v2(g: Graph, c: LatentConfig) -> Value:
    """Pre-norm decoder. The first layers have a feed-forward block instead of experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = deepseek_layer(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
