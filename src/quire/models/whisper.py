"""Whisper: an encoder of log-mel features behind two convolutions, a decoder with learned positions, norms first."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture, reads_source
from quire.models.source import SourceModel, attend_cross, attend_row, pair_names, source_numbers
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
                     lambda c: replace(c, **source_numbers(c, *c.source)), whisper_encoder)  # fmt: skip


@architecture(
    "WhisperForConditionalGeneration", model_type="whisper", names=DECODER, keys=ConfigKeys(KEYS), config=WhisperConfig
)
def whisper(g: Graph, c: WhisperConfig) -> Value:
    """Attention to the text so far, attention to the source, feed-forward; each is normed before it."""
    x = g.add(g.embed("embed"), g.embed_positions("positions"))
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps), rotates=False))
        h = g.layer_norm(x, layer["cross.norm"], eps=c.norm_eps)
        x = g.add(x, attend_cross(g, c, layer, h, scale=c.head_dim**-0.5))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), c.activation))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")


reads_source("WhisperForConditionalGeneration", SOURCE)
