"""Llama, and all that is Llama with other numbers: SmolLM2, Yi, TinyLlama, …"""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.names import Names, TensorName, marked
from quire.models.registry import architecture

LLAMA_NAMES: Names = {
    "embed": TensorName("model.embed_tokens", "token_embd", ("vocab", "hidden")),
    "attn.norm": TensorName("input_layernorm", "attn_norm", ("hidden",)),
    "attn.q": TensorName("self_attn.q_proj", "attn_q", ("q", "hidden")),
    "attn.k": TensorName("self_attn.k_proj", "attn_k", ("kv", "hidden")),
    "attn.v": TensorName("self_attn.v_proj", "attn_v", ("kv", "hidden")),
    "attn.out": TensorName("self_attn.o_proj", "attn_output", ("hidden", "q")),
    "mlp.norm": TensorName("post_attention_layernorm", "ffn_norm", ("hidden",)),
    "mlp.gate": TensorName("mlp.gate_proj", "ffn_gate", ("ffn", "hidden")),
    "mlp.up": TensorName("mlp.up_proj", "ffn_up", ("ffn", "hidden")),
    "mlp.down": TensorName("mlp.down_proj", "ffn_down", ("hidden", "ffn")),
    "norm": TensorName("model.norm", "output_norm", ("hidden",)),
    "head": TensorName("lm_head", "output", ("vocab", "hidden")),
}


@architecture("LlamaForCausalLM", gguf="llama", names=marked(LLAMA_NAMES, "attn.q", "attn.k", paired=True))
def llama(g: Graph, c: ModelConfig, *, norm_heads: bool = False) -> Value:
    """Pre-norm decoder with grouped heads, rotary positions and a gated feed-forward block."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"])
        q, k, v = g.linear_split(h, layer["attn.q"], layer["attn.k"], layer["attn.v"])
        if norm_heads:
            q, k = g.rms_norm_heads(q, layer["attn.q_norm"]), g.rms_norm_heads(k, layer["attn.k_norm"])
        h = g.attention(g.rope(q), g.rope(k), v, cache=layer, window=c.windows[layer.index])
        x = g.add(x, g.linear(h, layer["attn.out"]))
        h = g.rms_norm(x, layer["mlp.norm"])
        x = g.add(x, g.linear(g.silu_gate(h, layer["mlp.gate"], layer["mlp.up"]), layer["mlp.down"]))
    return g.logits(g.rms_norm(x, "norm"), "head")
