"""Nemotron-H and Nemotron 3: every layer is a mixer of Mamba-2, attention, a feed-forward block, or experts."""

from __future__ import annotations

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, mlp
from quire.models.hybrid import has_attention
from quire.models.mamba_blocks import mamba2_mixer
from quire.models.nemotron_h_config import KEYS, NemotronHConfig
from quire.models.nemotron_h_names import NAMES, is_mixer, is_mlp
from quire.models.registry import alias, architecture

NAME, ACTIVATION = "NemotronHForCausalLM", "relu2"


@architecture(NAME, model_type="nemotron_h", gguf="nemotron_h", names=NAMES, keys=KEYS, config=NemotronHConfig)
def nemotron_h(g: Graph, c: NemotronHConfig) -> Value:
    """Pre-norm blocks, one in each layer. Attention has no rope."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = nemotron_h_layer(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


def nemotron_h_layer(g: Graph, c: NemotronHConfig, layer: Layer, x: Value) -> Value:
    """Draw a layer."""
    return g.add(x, _block(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))


def _block(g: Graph, c: NemotronHConfig, layer: Layer, h: Value) -> Value:
    if has_attention(c, layer.index):
        return attend(g, c, layer, h, rotates=False)
    if is_mixer(c, layer.index):
        return mamba2_mixer(g, c, layer, h)
    return mlp(g, layer, h, ACTIVATION) if is_mlp(c, layer.index) else _experts(g, c, layer, h)


def _experts(g: Graph, c: NemotronHConfig, layer: Layer, h: Value) -> Value:
    """Experts without a gate, and one that all tokens use."""
    numbers = {"top": c.top, "renormalize": c.renormalize, "factor": c.factor, **c.routing}
    choice = g.route(h, layer["mlp.router"], correction=layer["mlp.correction"], **numbers)
    x = g.linear(h, layer["latent.in"]) if c.latent else h
    out = g.experts(x, choice, (None, layer["experts.up"], layer["experts.down"]), kind=ACTIVATION)
    out = g.linear(out, layer["latent.out"]) if c.latent else out
    return g.add(out, mlp(g, layer, h, ACTIVATION, "shared"))


alias("NemotronHMoeForCausalLM", of=NAME, model_type="nemotron_h", gguf="nemotron_h_moe")  # GGUF's name with experts
