"""Llama 4, its text model: rope and attention within chunks in three of four layers; experts, one for all tokens."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import experts_of, gated_mlp, rotate, with_shared_expert
from quire.models.config import MLP
from quire.models.llama import LLAMA_NAMES
from quire.models.llama4_config import KEYS, Llama4Config
from quire.models.moe import FUSED_GATE_UP, with_experts, with_shared
from quire.models.names import Stored, part
from quire.models.registry import architecture
from quire.ops.cache import PagedKV

DENSE = LLAMA_NAMES.but(
    {
        word: replace(LLAMA_NAMES.entries[word], safetensors=f"feed_forward.{word.removeprefix('mlp.')}_proj")
        for word in MLP
    }
)
APART = with_shared(with_experts(DENSE, block="feed_forward", router="router"), "feed_forward.shared_expert")
# Stacks of transposed matrices, gate and up side by side
PLACES = {
    "experts.gate": Stored("feed_forward.experts.gate_up_proj", part(0, "expert_ffn", "expert_ffn"), transposed=True),
    "experts.up": Stored("feed_forward.experts.gate_up_proj", part(1, "expert_ffn", "expert_ffn"), transposed=True),
    "experts.down": Stored("feed_forward.experts.down_proj", transposed=True),
}
STACKS = {word: replace(APART.entries[word], safetensors=place, kind="") for word, place in PLACES.items()}
NAMES = APART.but(layouts={**FUSED_GATE_UP, "feed_forward.experts.gate_up_proj": STACKS})


@architecture("Llama4ForCausalLM", model_type="llama4_text", gguf="llama4", names=NAMES, keys=KEYS, config=Llama4Config)
def llama4(g: Graph, c: Llama4Config) -> Value:
    """Pre-norm decoder. The input of an expert, not its answer, is multiplied with its weight."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, _attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        x = g.add(x, _mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


def _attend(g: Graph, c: Llama4Config, layer: Layer, h: Value) -> Value:
    q, k, v = (g.linear(h, layer[f"attn.{word}"]) for word in "qkv")
    if c.rotates[layer.index]:
        q, k = (rotate(g, c, layer, x, interleaved=True) for x in (q, k))
        if c.norms_heads:
            q, k = (g.rms_norm(x, None, eps=c.norm_eps, group=c.head_dim) for x in (q, k))
    elif c.position_scale is not None:
        q = g.scale_by_position(q, beta=c.position_scale[0], span=c.position_scale[1], shift=1)
    cache = g.cache(PagedKV(c.num_kv_heads, c.head_dim, c.head_dim, None, c.chunks[layer.index]))
    return g.linear(g.attention(q, k, v, cache, scale=c.head_dim**-0.5), layer["attn.out"])


def _mlp(g: Graph, c: Llama4Config, layer: Layer, h: Value) -> Value:
    if not c.sparse[layer.index]:
        return gated_mlp(g, layer, h, "silu")
    weighted = {"kind": "silu", "on_input": True}
    routed = experts_of(g, c, layer, h, weighted, scoring="sigmoid", scores_chosen=True)
    return with_shared_expert(g, c, layer, h, "silu", routed)
