"""Kimi-Linear: Kimi Delta Attention in most layers, latent attention without rope in the others, and experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import moe_mlp
from quire.models.deepseek_v3 import LATENT_GGUF, V3_CONFIG
from quire.models.delta import DeltaHeads
from quire.models.hybrid import LINEAR, has_attention
from quire.models.kda import CONFIG_KEYS, GGUF_KEYS, kda_block, read_kda
from quire.models.keys import ConfigKeys
from quire.models.kimi_linear_names import NAMES
from quire.models.latent import LatentConfig, attend_latent
from quire.models.llama import ROPE_KEYS
from quire.models.registry import architecture
from quire.models.values import Values

SPELLING = {
    "max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize", "n_group": "num_expert_group",
    "num_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}  # fmt: skip
CONFIG = V3_CONFIG.override(
    reads=[*CONFIG_KEYS, "layer_types", "mlp_layer_types"],
    ignores=[*ROPE_KEYS, "rope_interleave"],  # no part of a key is rotated
    fixed={"mla_use_nope": (None, True), "moe_router_activation_func": (None, "sigmoid"),
           "use_grouped_topk": (None, True)},
    spelling=SPELLING,
    synonyms={ours: ours for ours in SPELLING if ours != "num_experts"},
    defaults={"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4, "q_lora_rank": None,
              "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446,
              "first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "eos_token_id": 163586,
              "max_position_embeddings": 1048576, "num_nextn_predict_layers": 0},
    layer_types=[LINEAR],
)  # fmt: skip
GGUF = LATENT_GGUF.override(
    reads=GGUF_KEYS, ignores=["rope.freq_base"], by_layer=["attention.head_count_kv"],
    defaults={"expert_weights_norm": True},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiLinearConfig(LatentConfig):
    """With the numbers of KDA."""

    delta: DeltaHeads

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return super(KimiLinearConfig, cls).read(base | read_kda(base, values, is_gguf), values, is_gguf)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**LatentConfig.sizes(self, layer), **self.delta.sizes()}


@architecture(
    "KimiLinearForCausalLM", model_type="kimi_linear", gguf="kimi-linear", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
    config=KimiLinearConfig,
)  # fmt: skip
def kimi_linear(g: Graph, c: KimiLinearConfig) -> Value:
    """Pre-norm decoder. The first layers have a feed-forward block instead of experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h, is_full = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), has_attention(c, layer.index)
        x = g.add(x, attend_latent(g, c, layer, h) if is_full else kda_block(g, layer, h, c.delta, c.norm_eps))
        x = g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
