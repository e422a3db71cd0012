"""Whisper: an encoder of log-mel features behind two convolutions, a decoder with learned positions, norms first."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, mlp
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture, reads_source
from quire.models.source import SourceModel, attend_by, attend_row, pair_names, source_numbers
from quire.models.whisper_config import CROSS, DECODER, ENCODER, KEYS, WhisperConfig
from quire.ops.source import shift_tokens


def whisper_encoder(g: Graph, c: WhisperConfig) -> Value:
    """A token is two frames of features. Convolutions are products with each tap, of tokens moved by one."""
    frames = g.features(2 * c.mels)
    first, second = g.columns(frames, 0, c.mels), g.columns(frames, c.mels, c.mels)
    before = g.draw(shift_tokens, {"x": g.linear(second, "before")}, {}, by=-1)
    behind = g.draw(shift_tokens, {"x": g.linear(first, "behind")}, {}, by=1)
    even = g.activation(g.add(g.linear(frames, "even"), before), "gelu")
    odd = g.activation(g.add(g.linear(frames, "odd"), behind), "gelu")
    x = g.draw(shift_tokens, {"x": g.linear(odd, "stride0")}, {}, by=-1)
    x = g.activation(g.add(g.add(x, g.linear(even, "stride1")), g.linear(odd, "stride2")), "gelu")
    x = g.add(x, g.embed_positions("positions"))
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend_row(g, c, layer, h, scale=c.head_dim**-0.5))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), c.activation))
    return g.layer_norm(x, "norm", eps=c.norm_eps)


SOURCE = SourceModel(ENCODER, pair_names("model.decoder.layers", CROSS, "v"),
                     lambda c: replace(c, **source_numbers(c, *c.source)), whisper_encoder,
                     lambda c: c.alignment)  # fmt: skip


def _keep_queries(g: Graph, c: WhisperConfig, layer: Layer, q: Value) -> None:
    """Make the queries of this layer's heads of alignment an output, side by side with those of earlier layers."""
    for head in [head for index, head in c.alignment if index == layer.index]:
        taken = g.columns(q, head * c.head_dim, c.head_dim)
        g.outputs["hidden"] = g.concat(g.outputs["hidden"], taken) if "hidden" in g.outputs else taken


@architecture(
    "WhisperForConditionalGeneration", model_type="whisper", names=DECODER, keys=ConfigKeys(KEYS), config=WhisperConfig
)
def whisper(g: Graph, c: WhisperConfig) -> Value:
    """Attention to the text so far, attention to the source, feed-forward; each is normed before it.

    The queries of some heads are an output: by their attention to the source, words are found in it.
    """
    x = g.add(g.embed("embed"), g.embed_positions("positions"))
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps), rotates=False))
        q = g.linear(g.layer_norm(x, layer["cross.norm"], eps=c.norm_eps), layer["cross.q"])
        _keep_queries(g, c, layer, q)
        x = g.add(x, attend_by(g, c, layer, q, scale=c.head_dim**-0.5))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), c.activation))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")


reads_source("WhisperForConditionalGeneration", SOURCE)
