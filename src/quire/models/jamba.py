"""Jamba: attention in some layers and mixers of Mamba in the others; experts in every second one. No rope."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bamba import NAMES as BAMBA_NAMES
from quire.models.blocks import attend, moe_mlp
from quire.models.config import MLP
from quire.models.hybrid import has_attention, has_recurrence
from quire.models.jamba_config import KEYS, JambaConfig, may_be_dense, may_be_sparse
from quire.models.mamba_blocks import mamba2_names, mamba_mixer, mamba_names
from quire.models.moe import FUSED_GATE_UP, fused_stacks, with_experts
from quire.models.names import TensorName
from quire.models.registry import architecture

EXPERTS = ("mlp.router", "experts.gate", "experts.up", "experts.down")
STACKS = ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")
NORMS = {
    f"ssm.{word}_norm": TensorName(f"mamba.{name}_layernorm", f"ssm_{name}_norm", (size,), only=has_recurrence)
    for word, name, size in (("rank", "dt", "ssm_rank"), ("b", "b", "ssm_size"), ("c", "c", "ssm_size"))
}
MIXER: dict[str, TensorName | None] = {**dict.fromkeys(mamba2_names("")), **mamba_names("mamba", has_recurrence)}
NAMES = (
    with_experts(BAMBA_NAMES.but({**MIXER, **NORMS}), block="feed_forward", router="router")
    .marked(*EXPERTS, only=may_be_sparse, in_all=False)
    .marked(*MLP, only=may_be_dense, in_all=False)
    .but(layouts={**FUSED_GATE_UP, STACKS[0]: fused_stacks(STACKS)})
)


@architecture("JambaForCausalLM", model_type="jamba", gguf="jamba", names=NAMES, keys=KEYS, config=JambaConfig)
def jamba(g: Graph, c: JambaConfig) -> Value:
    """Pre-norm decoder. What the scan of a mixer reads is normed."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        if has_attention(c, layer.index):
            x = g.add(x, attend(g, c, layer, h, rotates=False))
        else:
            x = g.add(x, mamba_mixer(g, c, layer, h, norm_eps=c.norm_eps))
        x = g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
