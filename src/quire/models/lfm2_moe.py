"""LFM2-MoE: LFM2 with experts in all layers but the first ones, chosen by sigmoids with a correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.gated_conv import CONV_CONFIG, CONV_GGUF, CONV_NAMES, convolve, read_conv
from quire.models.hybrid import has_attention
from quire.models.keys import ConfigKeys
from quire.models.moe import CONFIG_KEYS, CORRECTION, GGUF_KEYS, MoeConfig, with_experts
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

BLOCK = "feed_forward"
CONFIG = CONV_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor",
           "use_expert_bias"],
    ignores=["output_router_logits"],
    spelling={"first_k_dense_replace": "num_dense_layers"},
    defaults={"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 1792, "first_k_dense_replace": 2,
              "norm_topk_prob": True, "use_expert_bias": True},
)  # fmt: skip
GGUF = CONV_GGUF.override(
    reads=[*GGUF_KEYS, "leading_dense_block_count", "expert_weights_scale"],
    fixed={"expert_gating_func": (2,)},
    defaults={"expert_weights_norm": True, "use_expert_bias": True},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2MoeConfig(MoeConfig):
    """With the width of convolutions, and whether the choice of experts is corrected."""

    taps: int
    is_corrected: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        if not is_gguf and "layer_types" not in values:
            raise values.refusal("layer_types", "a list")
        found = {**read_conv(base, values, is_gguf), "is_corrected": values.flag("use_expert_bias")}
        return super(Lfm2MoeConfig, cls).read(base | found, values, is_gguf)

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**MoeConfig.sizes(self, layer), "taps": self.taps}

    def has_correction(self, layer: int) -> bool:
        """Whether a layer has a correction of the choice of experts."""
        return self.is_corrected and self.sparse[layer]


CORRECTED = TensorName(f"{BLOCK}.expert_bias", CORRECTION, ("experts",), only=Lfm2MoeConfig.has_correction, kind="")
NAMES = with_experts(CONV_NAMES, block=BLOCK, words=("w1", "w3", "w2"), fused_block=BLOCK)


@architecture(
    "Lfm2MoeForCausalLM",
    model_type="lfm2_moe",
    gguf="lfm2moe",
    names=NAMES.but({"mlp.correction": CORRECTED}),
    keys=ConfigKeys(CONFIG, GGUF),
    config=Lfm2MoeConfig,
)
def lfm2_moe(g: Graph, c: Lfm2MoeConfig) -> Value:
    """Pre-norm decoder. Queries and keys are normed head by head."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        mixed = attend(g, c, layer, h, head_norm="rms") if has_attention(c, layer.index) else convolve(g, layer, h)
        x = g.add(x, mixed)
        h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, moe_mlp(g, c, layer, h, "silu", scoring="sigmoid"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
