"""T5, Flan-T5 and mT5: biases by relative position in place of positions, RMS norms, no scale of scores."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.keys import ConfigKeys
from quire.models.registry import alias, architecture, reads_source
from quire.models.source import SourceModel, attend_cross, attend_row, pair_names, source_numbers
from quire.models.t5_config import CROSS, DECODER, ENCODER, GGUF_KEYS, KEYS, MAX_TOKENS, MT5_KEYS, T5Config


def _mlp(g: Graph, c: T5Config, layer: Layer, x: Value) -> Value:
    h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
    if c.is_gated:
        return g.add(x, gated_mlp(g, layer, h, c.activation))
    return g.add(x, g.linear(g.activation(g.linear(h, layer["mlp.wide"]), c.activation), layer["mlp.down"]))


def t5_encoder(g: Graph, c: T5Config) -> Value:
    """Every token attends to all others."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = _mlp(g, c, layer, g.add(x, attend_row(g, c, layer, h, scale=1.0, distances="distances")))
    return g.rms_norm(x, "norm", eps=c.norm_eps)


def _encoder_config(c: T5Config) -> T5Config:
    numbers = source_numbers(c, c.source_layers, c.num_heads, c.ffn, MAX_TOKENS)
    return replace(c, **{**numbers, "head_dim": c.head_dim}, is_encoder=True)


SOURCE = SourceModel(ENCODER, pair_names("decoder.block", CROSS), _encoder_config, t5_encoder)


@architecture("T5ForConditionalGeneration", model_type="t5", gguf="t5", names=DECODER,
              keys=ConfigKeys(KEYS, GGUF_KEYS), config=T5Config)  # fmt: skip
def t5(g: Graph, c: T5Config) -> Value:
    """Attention to the text so far, to the source, feed-forward; each is normed before it."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, rotates=False, scale=1.0, distances="distances"))
        h = g.rms_norm(x, layer["cross.norm"], eps=c.norm_eps)
        x = _mlp(g, c, layer, g.add(x, attend_cross(g, c, layer, h, scale=1.0)))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", factor=c.hidden**-0.5 if c.scales else 1.0)


reads_source("T5ForConditionalGeneration", SOURCE)
alias("MT5ForConditionalGeneration", of="T5ForConditionalGeneration", model_type="mt5", keys=ConfigKeys(MT5_KEYS))
