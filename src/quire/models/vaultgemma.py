"""VaultGemma: Gemma 2 without the norms behind blocks."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.gemma2 import CONFIG, GEMMA2_NAMES, Gemma2Config
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture

NAMES = GEMMA2_NAMES.but({"attn.post_norm": None, "mlp.post_norm": None})


@architecture(
    "VaultGemmaForCausalLM", model_type="vaultgemma", names=NAMES, keys=ConfigKeys(CONFIG), config=Gemma2Config
)
def vaultgemma(g: Graph, c: Gemma2Config) -> Value:
    """Pre-norm decoder."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, scale=c.query_scale, softcap=c.attention_cap))
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", cap=c.final_cap)
