"""Arcee (AFM): Llama with a plain feed-forward block and squared relu."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES
from quire.models.registry import architecture

NAMES = PAIRED_NAMES.but({"mlp.gate": None})
CONFIG = LLAMA_CONFIG.override(
    fixed={"hidden_act": ("relu2",)}, defaults={"rms_norm_eps": 1e-5, "eos_token_id": 128001}
)


@architecture("ArceeForCausalLM", model_type="arcee", gguf="arcee", names=NAMES, keys=ConfigKeys(CONFIG, LLAMA_GGUF))
def arcee(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        x = g.add(x, mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "relu2"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
