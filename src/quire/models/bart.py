"""BART and Marian: learned or sinusoidal positions, layer norms after each block, biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.bart_config import CROSS, DECODER, ENCODER, FIRST_ROW, KEYS, BartConfig, MarianConfig
from quire.models.blocks import attend, mlp
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture, reads_source
from quire.models.source import SourceModel, attend_cross, attend_row, pair_names, source_numbers


def _embedded(g: Graph, c: BartConfig) -> Value:
    x = g.add(g.scale(g.embed("embed"), c.scale), g.embed_positions("positions", offset=FIRST_ROW * c.has_table))
    return g.layer_norm(x, "embed_norm", eps=c.norm_eps) if c.has_table else x


def _added(g: Graph, c: BartConfig, x: Value, h: Value, norm: str) -> Value:
    return g.layer_norm(g.add(x, h), norm, eps=c.norm_eps)


def _fed(g: Graph, c: BartConfig, layer: Layer, x: Value) -> Value:
    return _added(g, c, x, mlp(g, layer, x, c.activation), layer["mlp.norm"])


def bart_encoder(g: Graph, c: BartConfig) -> Value:
    """Every token attends to all others."""
    x = _embedded(g, c)
    for layer in g.layers(c.num_layers):
        h = attend_row(g, c, layer, x, scale=c.head_dim**-0.5)
        x = _fed(g, c, layer, _added(g, c, x, h, layer["attn.norm"]))
    return x


SOURCE = SourceModel(ENCODER, pair_names("model.decoder.layers", CROSS, "k", "v"),
                     lambda c: replace(c, **source_numbers(c, *c.source)), bart_encoder)  # fmt: skip


@architecture("MarianMTModel", model_type="marian", names=DECODER, keys=ConfigKeys(KEYS), config=MarianConfig)
@architecture(
    "BartForConditionalGeneration", model_type="bart", names=DECODER, keys=ConfigKeys(KEYS), config=BartConfig
)
def bart(g: Graph, c: BartConfig) -> Value:
    """Attention to the text so far, to the source, feed-forward; the sum is normed after each."""
    x = _embedded(g, c)
    for layer in g.layers(c.num_layers):
        x = _added(g, c, x, attend(g, c, layer, x, rotates=False), layer["attn.norm"])
        x = _added(g, c, x, attend_cross(g, c, layer, x, scale=c.head_dim**-0.5), layer["cross.norm"])
        x = _fed(g, c, layer, x)
    return g.logits(x, "head")


reads_source("BartForConditionalGeneration", SOURCE)
reads_source("MarianMTModel", SOURCE)
