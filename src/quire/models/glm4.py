"""GLM-4 (0414): GLM with norms before and after each block."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.glm import GLM_KEYS, GLM_NAMES
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = GLM_NAMES.but(
    {
        "attn.post_norm": TensorName("post_self_attn_layernorm", "post_attention_norm", ("hidden",)),
        "mlp.post_norm": TensorName("post_mlp_layernorm", "post_ffw_norm", ("hidden",)),
    }
)


@architecture("Glm4ForCausalLM", model_type="glm4", gguf="glm4", names=NAMES, keys=GLM_KEYS)
def glm4(g: Graph, c: ModelConfig) -> Value:
    """Each block is normed on both sides, then added."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), interleaved=True)
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu")
        x = g.add(x, g.rms_norm(h, layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
