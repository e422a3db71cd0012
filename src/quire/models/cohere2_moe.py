"""Cohere 2 with experts: attention and experts side by side; windows and rope in three of four layers."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, experts_of, gated_mlp, with_shared_expert
from quire.models.cohere2_moe_config import CONFIG, Cohere2MoeConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_NAMES
from quire.models.moe import with_experts, with_shared
from quire.models.registry import architecture

NAMES = with_shared(with_experts(LLAMA_NAMES.but({"mlp.norm": None})), "mlp.shared_experts")


@architecture(
    "Cohere2MoeForCausalLM", model_type="cohere2_moe", names=NAMES, keys=ConfigKeys(CONFIG), config=Cohere2MoeConfig
)
def cohere2_moe(g: Graph, c: Cohere2MoeConfig) -> Value:
    """Both blocks read the same normed value."""
    x, norm = g.embed("embed"), g.layer_norm if c.has_layer_norms else g.rms_norm
    for layer in g.layers(c.num_layers):
        h = norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, interleaved=True, rotates=c.rotates[layer.index]))
        if c.sparse[layer.index]:
            routed = experts_of(g, c, layer, h, {"kind": "silu"}, scoring=c.scoring, scores_chosen=True)
            x = g.add(x, g.scale(with_shared_expert(g, c, layer, h, "silu", routed), c.mlp_factor))
        else:
            x = g.add(x, gated_mlp(g, layer, h, "silu"))
    return g.logits(norm(x, "norm", eps=c.norm_eps), "head", factor=c.logit_scale)
