"""Gemma 4, its text model: two kinds of heads, layers that share keys and values, embeddings for each layer."""

from __future__ import annotations

from quire.graph.graph import Cache, Graph, Layer, Value
from quire.models.blocks import gated_mlp
from quire.models.gemma4_config import KEYS, Gemma4Config
from quire.models.gemma4_experts import with_expert_block
from quire.models.gemma4_names import NAMES
from quire.models.registry import architecture
from quire.ops.cache import PagedKV


@architecture(
    "Gemma4ForCausalLM",
    model_type="gemma4_text",
    gguf="gemma4",
    names=NAMES,
    keys=KEYS,
    config=Gemma4Config,
)
def gemma4(g: Graph, c: Gemma4Config) -> Value:
    """Each block is normed on both sides, then added. A third one multiplies by the layer's embedding of the token."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    inputs = _layer_inputs(g, c, x) if c.input_dim else None
    caches: dict[str, Cache] = {}  # by layer type, of the last layer that wrote one
    for layer in g.layers(c.num_layers):
        h = _attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), caches)
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh")
        x = g.add(x, g.rms_norm(with_expert_block(g, c, layer, x, h), layer["mlp.post_norm"], eps=c.norm_eps))
        if inputs is not None:
            h = g.activation(g.linear(x, layer["inputs.gate"]), "gelu_tanh")
            h = g.multiply(h, g.columns(inputs, layer.index * c.input_dim, c.input_dim))
            x = g.add(x, g.rms_norm(g.linear(h, layer["inputs.out"]), layer["inputs.norm"], eps=c.norm_eps))
        x = g.scale_by(x, layer["layer.scale"])
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", cap=c.final_cap)


def _layer_inputs(g: Graph, c: Gemma4Config, x: Value) -> Value:
    """The embeddings of all layers side by side: by token, plus a product with the model's own embedding."""
    product = g.scale(g.linear(x, "inputs_linear"), c.hidden**-0.5)
    product = g.rms_norm(product, "inputs_norm", eps=c.norm_eps, group=c.input_dim)
    return g.scale(g.add(product, g.scale(g.embed("inputs_table"), c.input_dim**0.5)), 2.0**-0.5)


def _attend(g: Graph, c: Gemma4Config, layer: Layer, h: Value, caches: dict[str, Cache]) -> Value:
    kind = c.layer_types[layer.index]
    dim = c.head_dims[kind]

    def rotated(x: Value, norm: str) -> Value:
        normed = g.rms_norm(x, layer[norm], eps=c.norm_eps, group=dim)
        return g.rope(normed, f"rope.{kind}", head_dim=dim, scaling=c.ropes[kind].scaling)

    q = rotated(g.linear(h, layer["attn.q"]), "attn.q_norm")
    if not c.has_keys(layer.index):
        return g.linear(g.attention_shared(q, caches[kind], scale=1.0), layer["attn.out"])
    k = g.linear(h, layer["attn.k"])
    v = g.rms_norm(g.linear(h, layer["attn.v"]) if layer["attn.v"] in g.shapes else k, None, eps=c.norm_eps, group=dim)
    caches[kind] = g.cache(PagedKV(c.kv_heads[kind], dim, dim, c.windows[layer.index]))
    return g.linear(g.attention(q, rotated(k, "attn.k_norm"), v, caches[kind], scale=1.0), layer["attn.out"])
